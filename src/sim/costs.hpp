// Durations of steps on a machine that runs nothing else.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "shingle/machine/machine.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle::sim {

Traffic traffic_of(CollectiveKind kind);

/// True if lanes are streams (GPUs): waits are kernels, and commands are queued before a run begins.
inline bool on_streams(const Machine& machine) {
  return machine.sync_us > 0;
}

class Costs {
 public:
  /// Throws InvalidArgument if the machine lacks figures that the plan's steps need.
  Costs(const Plan& plan, const Machine& machine);

  /// Time of the longest of items [first, last) of a tiled step, which `workers` workers run at once. With a
  /// GEMM `workers` are all that it takes.
  double items_us(const Step& step, std::int64_t first, std::int64_t last, std::int32_t workers) const;
  /// True if cuBLASLt or oneDNN computes the GEMM: its grid has one tile, and it uses all workers it gets.
  static bool is_library(const Gemm& gemm) { return gemm.grid.tiles() == 1; }
  double library_us(const Gemm& gemm, std::int32_t workers) const;

  /// Time of a collective after all `ranks` of its communicator have entered; `bytes` as the curves count
  /// them.
  double collective_us(CollectiveKind kind, int ranks, const CollectiveConfig& config, double bytes) const;
  /// Bytes that the collective moves over a rank's link in either direction.
  double wire_bytes(CollectiveKind kind, int ranks, double bytes) const;
  /// The part of that time in which a rank's own threads move bytes. All of it, unless links are emulated.
  double moving_us(CollectiveKind kind, int ranks, std::int32_t workers, double bytes) const;
  /// Rate at which `workers` workers of a rank send, and receive, if communication takes workers. 0: the
  /// links' rate.
  double message_gbps(std::int32_t workers) const;
  /// Delay until a sleeping host thread notices that its link is done. It is measured as the time of an empty
  /// alltoall. 0 unless links are emulated.
  double wake_us() const;
  /// Tiles of the worker that has most, over those that it would have if all had equally many. On GPUs a
  /// gated product whose rows are counted deals all its tiles to its workers in turn, before counts are
  /// known. So a worker may get several tiles with rows while others get none.
  double uneven(const Gemm& gemm, std::int32_t workers) const;
  /// Rate at which all workers of a rank store to others in this step, which takes at most `workers` of them.
  /// 0: the links' rate.
  double store_gbps(const Step& step, std::int32_t workers) const;
  /// Time of a copy within a rank's memory.
  double memory_us(double bytes) const;

  /// Time in which a worker adds other ranks' parts to a tile. `awaited`: it could not fetch the first one
  /// beside the product.
  double adding_us(const Gemm& gemm, std::int64_t item, bool awaited) const;
  /// Time of a pass over a rank's ids and slots.
  double assign_us(const AssignSlots& step) const;
  double merge_slots_us(const MergeSlots& step) const;
  /// A tile of a product, without the rows that are expected to have no token.
  ProductTile tile_of(const Gemm& gemm, std::int64_t item) const;
  /// Tiles of a GPU's product that start together, and keep their workers until all are done; else 1.
  std::int64_t cluster_of(const Gemm& gemm) const;
  /// Positions among the first `end` that take a worker's time: no phantoms, and with Gemm::live only tiles
  /// with rows that are expected to have a token. A cluster's tiles count if one of them does.
  std::int64_t live_tiles(const Gemm& gemm, std::int64_t end) const;
  /// Part of the rows of a pass that it is expected to store: slots may be empty.
  double filled(const Elementwise& step) const;
  /// Part of a tiled step's time on `workers` workers that waits for memory (Contention::share). Fewer
  /// workers ask for less at a time.
  double memory_share(const Step& step, std::int32_t workers) const;

  double bytes_of(const Slice& slice) const;
  /// Bytes of an element.
  double width_of(const Slice& slice) const;

 private:
  /// Time of the item's whole wave, for machines whose tiles always cost a whole tile.
  double wave_of_us(const Gemm& gemm, std::int64_t item, double k, std::int32_t workers) const;
  /// Time of a wave of tiles of a product on `workers` workers, apart from memory. `last`: whether it is a
  /// last wave that is not full.
  double multiply_wave_us(const Gemm& gemm, double k, std::int32_t workers, bool last) const;
  /// Time of a tile, for machines whose edge tiles cost only what they hold.
  double multiply_us(std::int64_t rows, std::int64_t cols, std::int64_t tile_rows, std::int64_t tile_cols,
                     double k) const;
  std::int64_t moved_rows(const Elementwise& step, const TileRect& rect) const;
  double workers_of_item(const Elementwise& step) const;
  double pass_us(const Elementwise& step, std::int64_t item, std::int32_t workers) const;
  /// Time of a tiled step alone on `workers` workers, as if they were busy to the end.
  double alone_us(const Step& step, std::int32_t workers) const;
  /// Time of a product, relative to that of a real one: what it stands for may take longer.
  double stand_in_factor(const Gemm& gemm) const;
  double store_again_us(std::span<const Placement> places, double bytes) const;
  double scores(std::int64_t first, std::int64_t rows, const TokenRange& keys) const;
  template <class Step>
  double attention_flop_us(const Step& step) const;
  double attend_us(const Attend& step, std::int64_t item) const;
  double attend_backward_us(const AttendBackward& step, std::int64_t item, std::int32_t items) const;
  double merge_us(const Merge& step, std::int64_t item, std::int32_t workers) const;

  const Plan& plan_;
  const Machine& machine_;
  double memory_bytes_per_us_, us_per_flop_;
  // Cache of wave_of_us(), by step, workers and wave
  mutable std::map<std::tuple<const Gemm*, std::int32_t, std::int64_t>, double> waves_;
  mutable std::map<const Gemm*, std::vector<std::int64_t>> live_before_;   // cache of live_tiles()
  mutable std::map<std::pair<const Gemm*, std::int32_t>, double> uneven_;  // cache of uneven()
  // Cache of attention_flop_us(): the last step's
  mutable std::pair<const void*, double> attention_{};
  mutable std::map<std::pair<const Step*, std::int32_t>, double> shares_;  // cache of memory_share()
};

}  // namespace shingle::sim
