// Machine: what a planner needs to know of the hardware.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/collective_config.hpp"
#include "shingle/base/units.hpp"
#include "shingle/grid/tile_grid.hpp"
#include "shingle/machine/contention.hpp"
#include "shingle/machine/curve.hpp"

namespace shingle {

/// What the phases of a transfer by a copy engine cost (DMA collectives §3.2, Figure 5). All zero: engines
/// that take no longer than their bytes.
struct EnginePhases {
  double control_us = 0;    ///< a command, or a write where engines poll: a thread of the host, one by one
  double schedule_us = 0;   ///< a batch: the same thread rings the doorbell
  double copy_us = 0;       ///< a copy: from its first to its last byte, beyond the time that its bytes take
  double gbps = 0;          ///< 1e9 bytes/s that an engine writes; 0: as fast as memory
  double sync_us = 0;       ///< a notify
  double fetch_us = 0;      ///< a batch: after the doorbell its engine, beside others, fetches the commands
  double queued_us = 0;     ///< a command behind another: begins so much later than that (§4.1.2)
  double poll_us = 0;       ///< a poll of a prelaunched batch: until its engine has seen the write (§4.1.3)
  double broadcast_us = 0;  ///< a broadcast: beyond a copy (§4.1.1)
  double swap_us = 0;       ///< a swap: beyond a copy (§4.1.1)

  bool paced() const { return *this != EnginePhases{}; }
  bool operator==(const EnginePhases&) const = default;
};

/// How long a worker takes for a tile of a GEMM, and so a wave of them: fixed + K · per_k (all of a machine's
/// workers busy, elements of two bytes).
struct TileRate {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  double fixed_us = 0;  ///< prologue and epilogue
  double us_per_k = 0;  ///< main loop

  double us(double k) const { return fixed_us + k * us_per_k; }
  bool operator==(const TileRate&) const = default;
};

/// How ranks are connected beside the link that each has into a switch (Machine::link, either direction).
struct Topology {
  Link pair;                    ///< that any two ranks of a group have to themselves; unpaced: they have none
  std::int32_t pair_ranks = 2;  ///< of such a group: 2 where ranks are bridged in pairs, all in a mesh
  std::int32_t ranks_per_node = 0;  ///< 0: all are in one node
  Link node;                        ///< of a whole node to other nodes, shared by its ranks
  /// A rank's link carries one transfer at a time, in either direction (the host's emulated links); otherwise
  /// transfers share it fairly, each direction by itself.
  bool serial = false;

  /// The ranks after which a world of so many looks the same again, so that its first ones stand for all: 1
  /// where all are connected alike, those of a node or group where there are several, and the whole world
  /// where one of these is not full.
  int period(int world) const;
  bool operator==(const Topology&) const = default;
};

/// Where a figure of a machine comes from.
enum class Origin : std::uint8_t { measured, datasheet, paper, fitted, assumed };
std::string_view name(Origin origin);

struct Source {
  std::string of;  ///< the profile's key: "tiles", "curves", …
  Origin origin = Origin::assumed;
  std::string note;
  bool operator==(const Source&) const = default;
};

struct Machine {
  std::string name = "host";
  std::int32_t workers = 1;             ///< SMs or cores of one rank
  std::int32_t collective_workers = 0;  ///< of these, how many a collective occupies while it runs
  std::int32_t tile_rows = 256;         ///< tile that computes well here
  std::int32_t tile_cols = 512;
  TileOrder order{};           ///< in which its GEMMs run their tiles, unless params say another
  Link link;                   ///< of one rank
  EnginePhases engine;         ///< of one copy engine
  bool peer_memory = true;     ///< whether ranks can load from and store to each other's memory
  std::int32_t ranks = 0;      ///< that there are; 0: any number
  double memory_gbps = 0;      ///< 1e9 bytes/s that a rank reads and writes of its own memory
  double launch_us = 0;        ///< from a step's inputs being there to its first tile, on an idle rank
  double signal_us = 0;        ///< from an add to a count to the step that awaits it
  double sync_us = 0;          ///< of waits and counts that follow one another in a lane, where these are a
                               ///< kernel; 0: they are none, and cost nothing beside signal_us
  bool early_kernels = false;  ///< a step is there before the one in front of it in the lane has ended, where
                               ///< that is not what it reads (GPUs: programmatic dependent launch)
  double lone_latency = 0;     ///< what a collective takes longer that follows no other at once, as those of
                               ///< `curves` do: this many times what its curve begins with
  double pass_gbps = 0;        ///< 1e9 bytes/s that a worker reads and writes in an elementwise pass; 0: all
                               ///< workers together saturate memory
  double reduce_gbps = 0;      ///< the same in a pass that sums what several ranks stored; 0: as any pass
  double store_gbps = 0;       ///< 1e9 bytes/s of a rank's link that workers reach who store to other ranks'
                               ///< memory, all together; 0: all of it
  bool whole_tiles = true;     ///< a tile at the edge of a matrix takes as long as a whole one
  double hooked_us =
      0;                ///< beyond launch_us, before the first tile and behind the last of a GEMM whose tiles
                        ///< are counted, awaited or stored along a route, where another kernel computes these
  double split_us = 0;  ///< for each part beyond the first that the sums of a GEMM with too few tiles are
                        ///< split into (split_parts()); 0: they are not split
  double attention_rate = 1;  ///< multiply-adds of attention, relative to those of the fastest tile
  double library_rate = 1;  ///< those of a library's GEMM, relative to its best tile's: where another kernel
                            ///< computes tiles
  double picking_rate = 1;  ///< those of a GEMM that picks the rows of its tiles from several shards of A,
                            ///< relative to one that reads A as it stands
  Topology topology{};
  Contention contention{};
  std::vector<TileRate> tiles{};
  std::vector<Curve> curves{};
  std::vector<ContentionSample> contention_samples{};  ///< that `contention` was fitted on
  std::vector<Source> sources{};

  /// Of a collective while its ranks compute, or do not.
  double lone_latency_of(bool beside) const {
    return beside && contention.lone_latency > 0 ? contention.lone_latency : lone_latency;
  }
  bool operator==(const Machine&) const = default;
};

/// The time of a wave of tiles of a GEMM over `k`: of this tile; where tiles are whole, of the fastest that
/// holds it; else between the nearest smaller and the
/// nearest larger one straight in log area and log time; beyond all in proportion to the area; negative
/// without any.
double wave_us(const Machine& machine, std::int64_t tile_rows, std::int64_t tile_cols, double k);

/// The time of a collective of `bytes` (as Sample counts them) between so many ranks on `workers` of each.
/// Within a node: by the curves; where none has this traffic, from the link's rate and latency. Across nodes:
/// that of a full node, then over the nodes' links wire_factor(nodes) · bytes and a latency for each of
/// ⌈log2 nodes⌉ steps (an all-reduce: twice); of an all-to-all the node's share within it, the others' from
/// all of its ranks over its link at once. Never negative, never falls with more bytes.
double collective_us(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes);

/// The same with a library's settings for it. Curves are of the library's own choice of algorithm, protocol
/// and transport, and of large chunks: another algorithm, protocol or transport takes longer, by what NCCL's
/// own tuning model has of their rates and latencies; each chunk of a channel costs what the contention says.
/// Threads make no difference (Lagom §3.2).
double collective_us(const Machine& machine, Traffic traffic, int ranks, const CollectiveConfig& config,
                     double bytes);
/// The chunks that each of so many channels moves of it.
double chunks_of(Traffic traffic, int ranks, int channels, std::int64_t chunk_bytes, double bytes);
/// The workers that a collective with these settings occupies: those of the library, where they leave it
/// the choice.
int channels_of(const Machine& machine, const CollectiveConfig& config);

/// "control=1us,schedule=2us,copy=3us,sync=2us,rate=60GB/s", and fetch, queued, poll, broadcast, swap →
/// phases; parts that are left out are 0. Throws InvalidArgument.
EnginePhases parse_engine(std::string_view text);

}  // namespace shingle
