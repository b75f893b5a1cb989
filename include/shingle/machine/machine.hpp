// Machine: the figures of the hardware that planners and the simulator use.
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

/// Cost of each phase of a transfer by a copy engine (DMA collectives §3.2, Figure 5). All zero: a transfer
/// takes only the time of its bytes.
struct EnginePhases {
  double control_us = 0;   ///< of a command or a write to a polled word; one host thread issues them in turn
  double schedule_us = 0;  ///< of a batch: the same host thread rings the doorbell
  double copy_us = 0;      ///< of a copy: from its first to its last byte, beyond the time of its bytes
  double gbps = 0;         ///< 1e9 bytes/s that an engine writes; 0: as fast as memory
  double sync_us = 0;      ///< of a notify
  double fetch_us = 0;   ///< of a batch: the engine fetches it after the doorbell; engines do so in parallel
  double queued_us = 0;  ///< of a command behind another one: its start is delayed by this (§4.1.2)
  double poll_us = 0;    ///< of a poll of a prelaunched batch: until its engine has seen the write (§4.1.3)
  double broadcast_us = 0;  ///< of a broadcast, beyond a copy (§4.1.1)
  double swap_us = 0;       ///< of a swap, beyond a copy (§4.1.1)

  bool paced() const { return *this != EnginePhases{}; }
  bool operator==(const EnginePhases&) const = default;
};

/// Time that a worker takes for a tile of a GEMM, and so the time of a wave: fixed_us + K · us_per_k. All
/// workers of the machine are busy; elements have two bytes.
struct TileRate {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  double fixed_us = 0;  ///< prologue and epilogue
  double us_per_k = 0;  ///< main loop, per element of K
  /// Machine::store_gbps of a product with such tiles; 0: the machine's. Stores of some tiles are not paced,
  /// and delay the product where the link cannot take them.
  double store_gbps = 0;
  /// As above, if the tiles do not come in clusters. Each worker then loads its columns of B itself, so that
  /// stores to other ranks wait for more loads. 0: as in clusters.
  double alone_store_gbps = 0;

  double us(double k) const { return fixed_us + k * us_per_k; }
  bool operator==(const TileRate&) const = default;
};

/// Sizes of an attention of a rank, or of its backward, that tell how fast it is.
struct AttentionSize {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;  ///< of the queries
  std::int64_t head_dim = 128;
  bool causal = false;  ///< the last query sees all keys, the one before all but the last, …
  bool backward = false;
  bool operator==(const AttentionSize&) const = default;
};

/// Multiply-add rate of an attention's workers, relative to that of the fastest tile. Workers that are idle
/// in the simulator's last wave are not part of it.
struct AttentionRate {
  AttentionSize of{};
  double rate = 1;
  bool operator==(const AttentionRate&) const = default;
};

/// Links beside the one that each rank has into a switch (Machine::link, either direction).
struct Topology {
  Link pair;                        ///< private link of any two ranks of a group; unpaced: there is none
  std::int32_t pair_ranks = 2;      ///< ranks of such a group: 2 for bridged pairs, all for a mesh
  std::int32_t ranks_per_node = 0;  ///< 0: all ranks are in one node
  Link node;                        ///< link of a node to the other nodes, shared by its ranks
  /// True: a rank's link carries one transfer at a time, in either direction (the host's emulated links).
  /// False: transfers share the link fairly, each direction by itself.
  bool serial = false;

  /// The number of ranks after which a world of this size repeats, so that the first ones stand for all. It
  /// is 1 if all ranks are connected alike, and the ranks of a node or group if there are several. It is the
  /// whole world if the last node or group is not full.
  int period(int world) const;
  bool operator==(const Topology&) const = default;
};

/// Products that heat a rank: after `after_us` of them without a rest, their rate is `rate` of that before.
struct Throttle {
  double after_us = 0;  ///< 0: never
  double rate = 1;
  bool operator==(const Throttle&) const = default;
};

/// Where a figure of a machine comes from.
enum class Origin : std::uint8_t { measured, datasheet, paper, fitted, assumed };
std::string_view name(Origin origin);

struct Source {
  std::string of;  ///< key of the profile: "tiles", "curves", …
  Origin origin = Origin::assumed;
  std::string note;
  bool operator==(const Source&) const = default;
};

struct Machine {
  std::string name = "host";
  std::int32_t workers = 1;             ///< SMs or cores of one rank
  std::int32_t collective_workers = 0;  ///< workers that a collective occupies while it runs
  std::int32_t tile_rows = 256;         ///< tile size that computes well here
  std::int32_t tile_cols = 512;
  TileOrder order{};        ///< tile order of its GEMMs, unless params give one
  Link link;                ///< of one rank
  EnginePhases engine;      ///< of one copy engine
  bool peer_memory = true;  ///< true if ranks can load from and store to each other's memory
  std::int32_t ranks = 0;   ///< number of ranks; 0: any number
  double memory_gbps = 0;   ///< 1e9 bytes/s that a rank reads and writes of its own memory
  double launch_us = 0;     ///< from a step's inputs being ready to its first tile, on an idle rank
  double signal_us = 0;     ///< from an add to a count to the step that awaits it
  double sync_us = 0;  ///< cost of consecutive awaits and notifies in a lane, if they are a kernel (GPUs); 0:
                       ///< they are none, and cost nothing beyond signal_us
  double pass_us = 0;  ///< each pass beyond the first of a delivery, which is one kernel (GPUs): from the end
                       ///< of the pass before it to its first items
  double load_us = 0;  ///< a load whose address another load gives, in kernels that look up rows or counts on
                       ///< the device (GPUs)
  bool early_kernels = false;  ///< a step may start before the step in front of it ends, unless it reads that
                               ///< step's output (GPUs: programmatic dependent launch)
  double lone_latency = 0;  ///< added latency of a collective that does not directly follow another one, as
                            ///< samples of `curves` do; a multiple of its curve's first time
  double pass_gbps = 0;  ///< 1e9 bytes/s that one worker reads and writes in an elementwise pass; 0: only all
                         ///< workers together saturate memory
  double reduce_gbps = 0;  ///< pass_gbps of a pass that sums what several ranks stored; 0: as any pass
  double parts_gbps = 0;   ///< 1e9 bytes/s at which one worker takes in another rank's part of a sum, in the
                           ///< epilogue of a product: all parts but the first, for which the worker does not
                           ///< wait. 0: no time beyond that of adding, which is as in a pass
  double split_gbps = 0;   ///< 1e9 bytes/s at which one worker leaves the fp32 sums of a part of a tile, or
                           ///< adds them, where workers share tiles (grid/split.hpp); 0: none are shared
  double store_gbps = 0;  ///< 1e9 bytes/s that all workers of a rank together reach when they store to remote
                          ///< memory; 0: the link's rate
  bool whole_tiles = true;  ///< true: a tile at the edge of a matrix takes as long as a whole one
  double begin_us = 0;      ///< of a run, before the first steps of its lanes and beyond their launches
  /// Time before the first tile of a GEMM and after the last, beyond launch_us. It holds for GEMMs whose
  /// tiles are counted, gated or stored along a route, if a kernel other than cuBLASLt's computes them.
  double hooked_us = 0;
  /// Multiply-add rate of the GEMM of cuBLASLt (host: oneDNN), relative to its best tile in `tiles`. It
  /// differs from 1 if another kernel computes those tiles.
  double library_rate = 1;
  /// Share of a partial last wave's idle time that such a GEMM spends. Below 1 it cuts last tiles, or takes
  /// lower ones.
  double library_tail = 1;
  /// Multiply-add rate of a GEMM that picks its tiles' rows from several shards of A, relative to one that
  /// reads A as it is.
  double picking_rate = 1;
  Throttle throttle{};
  Topology topology{};
  Contention contention{};
  std::vector<TileRate> tiles{};
  std::vector<AttentionRate> attention{};  ///< empty: the rate of the fastest tile
  std::vector<Curve> curves{};
  std::vector<ContentionSample> contention_samples{};  ///< measurements that `contention` was fitted on
  std::vector<Source> sources{};

  /// lone_latency of a collective: that of `contention` if it is set and the ranks compute, else the
  /// machine's.
  double lone_latency_of(bool beside) const {
    return beside && contention.lone_latency > 0 ? contention.lone_latency : lone_latency;
  }
  bool operator==(const Machine&) const = default;
};

/// Rate of one worker in a pass that sums what several ranks stored, in 1e9 bytes/s; 0 as pass_gbps.
inline double summing_gbps(const Machine& machine) {
  return machine.reduce_gbps > 0 ? machine.reduce_gbps : machine.pass_gbps;
}

/// AttentionRate::rate of any attention: the mean of the machine's rates weighted by nearness, in powers of
/// two of queries, keys, heads and columns of a head. It takes rates of the same direction as far as there
/// are any, and of these those of the same mask.
double attention_rate(const Machine& machine, const AttentionSize& size);

/// Time of a wave of tiles of a GEMM over `k`. A size in `tiles` has its own time. If tiles are whole,
/// another size has the time of the fastest tile that holds it.
///
/// Otherwise the time is interpolated between the nearest smaller and larger tile, linearly in log area and
/// log time. Outside their range it is proportional to the area. Negative if there are no tiles.
double wave_us(const Machine& machine, std::int64_t tile_rows, std::int64_t tile_cols, double k);

/// Time of a collective of `bytes` (as in Sample) between `ranks` ranks, on `workers` workers of each. Never
/// negative, and never falls with more bytes.
///
/// Within a node the curves give it; without a curve of this traffic, the link's rate and latency. Across
/// nodes bytes pass through a full node and over the nodes' links as through a pipeline: the slower of the
/// two counts, and the latencies of both. The links carry wire_factor(nodes) · bytes and add ⌈log2 nodes⌉
/// latencies (an all-reduce: twice as many). An all-to-all moves the node's share of its bytes within the
/// node. All ranks of the node send the rest over the node's link at once. Emulated links (Topology::serial)
/// take their turns: there both times count.
double collective_us(const Machine& machine, Traffic traffic, int ranks, int workers, double bytes);

/// As above, with NCCL settings. Curves hold NCCL's own choice of algorithm, protocol and transport, and
/// large chunks. Another algorithm, protocol or transport takes longer, by the rates and latencies of NCCL's
/// tuning model. Each chunk of a channel adds contention.chunk_us; across nodes the first chunks also fill
/// the pipeline. Threads make no difference (Lagom §3.2).
double collective_us(const Machine& machine, Traffic traffic, int ranks, const CollectiveConfig& config,
                     double bytes);
/// Chunks that each of `channels` channels moves in a collective of `bytes`.
double chunks_of(Traffic traffic, int ranks, int channels, std::int64_t chunk_bytes, double bytes);
/// Workers that a collective with these settings occupies: its channels, or collective_workers if NCCL
/// chooses.
int channels_of(const Machine& machine, const CollectiveConfig& config);

/// Parses "control=1us,schedule=2us,copy=3us,sync=2us,rate=60GB/s"; fetch, queued, poll, broadcast and swap
/// are also accepted. Phases left out are 0. Throws InvalidArgument.
EnginePhases parse_engine(std::string_view text);

}  // namespace shingle
