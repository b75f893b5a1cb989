// Tensor-parallel experts whose rows of all sources follow each other: the step that merges the slots of all
// ranks, and what its indices and counts are for.
#pragma once

#include "slots.hpp"

namespace shingle::planner {

/// The order of slots that a plan has: `asked`, or by size if the problem has such slots.
///
/// By size slots are merged if a tile has room for the rows that are expected of a source. By source each
/// expert would then have as many tiles as there are ranks, each of which reads the weight. Where a machine
/// has no times of tiles, or edge tiles cost only what they hold, slots stay by source.
SlotOrder slot_order(const Problem& problem, const Machine& machine, const TileParams& tile, SlotOrder asked);

/// The indices and counts of a plan's MergeSlots steps. All passes pick rows: they leave out slots that have
/// no token.
class MergedSlots {
 public:
  /// Declares their buffers. `slots`: those of each rank, which all ranks have gathered.
  MergedSlots(Builder& build, const Slots& slots);

  /// Appends the step that merges slots to a rank's compute lane.
  void merge(int rank) const;
  /// The pass that stores rows by merged slot: tokens of all ranks, or rows by expert of the user.
  Elementwise sort(const Slice& rows, const Slice& sorted) const;
  /// The product of rows by merged slot, a group for each expert.
  Gemm multiply(const Machine& machine, const TileParams& tile, Gemm product, const Slice& a) const;
  /// The pass that stores products as the user's rows by expert.
  Elementwise place(const Slice& products) const;
  /// The pass that sums the choices of the tokens of all ranks. `grid`: of these tokens' sums.
  Elementwise combine(const Slice& products, const Slice& factors, Placement to, const TileGrid& grid) const;

 private:
  Builder& build_;
  const Slots& slots_;
  std::int32_t live_ = -1, merged_of_ = -1, token_of_ = -1, row_of_ = -1, slot_at_ = -1;
};

}  // namespace shingle::planner
