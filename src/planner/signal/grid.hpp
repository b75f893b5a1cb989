// The tiles of `signal` and the waves in which they finish: what its planner groups and its tuner predicts.
#pragma once

#include <vector>

#include "shingle/base/result.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::planner {

/// The GEMM of a problem as `signal` runs it.
struct SignalGrid {
  TileGrid grid;                ///< of the rank with most rows; waves are counted on it
  std::vector<TileGrid> ranks;  ///< gemm+alltoall: of every rank; otherwise empty, all are alike
  std::int64_t workers = 1;     ///< tiles in a wave: the workers that collectives leave to the GEMM
  std::int32_t collective_workers = 0;
  TileOrder order{};  ///< of the params, or where they name none of the machine

  std::int64_t waves() const { return ceil_div(grid.positions(), workers); }
  /// Where a group that ends at position `end` of `grid` ends on a rank: in proportion.
  std::int64_t end_on(int rank, std::int64_t end) const {
    return ceil_div(end * ranks[static_cast<std::size_t>(rank)].positions(), larger(grid.positions(), 1));
  }
};

/// Throws InvalidArgument where the problem is none; a Reason where `signal` cannot serve it, or not with
/// this tile.
Result<SignalGrid> signal_grid(const Problem& problem, const Machine& machine, const Params& params);

}  // namespace shingle::planner
