// Tiles of `signal` and the waves in which they finish. The planner groups them, and the tuner predicts with
// them.
#pragma once

#include <optional>
#include <vector>

#include "shingle/base/result.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"

namespace shingle::planner {

/// The GEMM of a problem, as `signal` runs it.
struct SignalGrid {
  TileGrid grid;  ///< of the rank with the most rows; waves are counted on it
  std::vector<TileGrid>
      ranks;  ///< gemm+alltoall: grid of every rank; otherwise empty, because all ranks have the same
  std::int64_t workers = 1;  ///< tiles in a wave: the workers that collectives leave to the GEMM
  std::int32_t collective_workers = 0;
  TileOrder order{};  ///< from the params, else from the machine

  std::int64_t waves() const { return ceil_div(grid.positions(), workers); }
  /// Position on a rank at which a group ends that ends at position `end` of `grid`, in proportion.
  std::int64_t end_on(int rank, std::int64_t end) const {
    return ceil_div(end * ranks[static_cast<std::size_t>(rank)].positions(), larger(grid.positions(), 1));
  }
};

/// Equal groups with a short last one, because the transfer of the last group is always exposed (FlashOverlap
/// §4.1.3): waves in each.
std::vector<std::int64_t> default_partition(std::int64_t waves);

/// Reason why these groups are none of any product, or nullopt.
std::optional<Reason> wrong_groups(const SignalParams& params);

/// Throws InvalidArgument if the problem is invalid. Reason why `signal` does not plan the problem, or
/// nullopt.
std::optional<Reason> unserved_by_signal(const Problem& problem, const Machine& machine,
                                         const SignalParams& params);

/// As unserved_by_signal(), or why not with this tile. Grouped products have no such grid.
Result<SignalGrid> signal_grid(const Problem& problem, const Machine& machine, const SignalParams& params);

}  // namespace shingle::planner
