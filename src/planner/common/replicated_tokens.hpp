// Tensor-parallel experts of tokens that all ranks have (grouped-gemm+allreduce, moe+allreduce): all that a
// rank computes before its sums are added to those of the others.
#pragma once

#include <optional>
#include <vector>

#include "experts.hpp"
#include "slots.hpp"

namespace shingle::planner {

/// A rank gathers nothing, and all ranks route the same tokens in the same way. So only sums travel. To hide
/// that, the last product is computed in *strips* of columns: a strip of all tokens is summed over their
/// choices, and leaves, while the next is multiplied. Strips of rows would read the weights once a strip.
class ReplicatedTokens {
 public:
  /// `tile`: of the products. `workers`: of the last product. All workers do what comes before. But if other
  /// lanes await the last product, the first one has workers_beside_waits().
  ReplicatedTokens(Builder& build, const Machine& machine, const TileParams& tile, std::int32_t workers);

  /// Appends the steps that make the rows of the last product's A: slots, tokens by expert, first product.
  void take(int rank) const;

  /// Columns [first, first + cols) of the output. In the order of the product's tiles they end before `end`.
  struct Strip {
    std::int64_t first = 0;
    std::int64_t cols = 0;
    std::int64_t end = 0;
  };
  /// The last product, without hooks, and its strips. Tiles of a strip follow each other.
  struct Product {
    Gemm gemm;
    std::vector<Strip> strips;
  };
  /// Strips with about these shares of the columns. Narrow outputs have fewer strips.
  Product product(int rank, const std::vector<std::int64_t>& shares) const;
  /// Makes the tiles of a product count by strip, and returns their numbers.
  static std::vector<std::uint32_t> count_by_strip(Product& product, std::int32_t counter);

  /// The pass that sums the choices of all tokens for some columns, without hooks and a place for the sums.
  /// The grid has one column of tiles, which may begin with any row of tiles and go around.
  Elementwise combine(int rank, const Strip& strip, const TileGrid& grid) const;

 private:
  Gemm in_groups(Gemm product, std::int32_t a, const TileParams& tile) const;
  const Slots* slots() const { return slots_ ? &*slots_ : nullptr; }

  Builder& build_;
  const Problem& p_;
  const Machine& machine_;
  const TileParams tile_;
  const std::int32_t workers_, first_workers_;
  std::optional<Slots> slots_;                              // with a capacity
  std::int32_t sorted_ = -1, hidden_ = -1, products_ = -1;  // buffers
};

/// Workers of a product while other lanes wait on the device: all but one, as sync kernels find no room
/// beside its CTAs (most_workers() in lower/launch_rules.hpp). With all, the last CTAs would begin when the
/// others are done, and the product would take twice as long.
std::int32_t workers_beside_waits(const Builder& build);
/// Strips to hide sums behind, of the same width: about a wave of tiles each, so that few workers idle.
std::int64_t strips_of(const Problem& problem, const Machine& machine, const TileParams& tile);
/// Workers that sum beside the last product; FusedParams::no_helpers: it is too short for any. `asked`:
/// number that the params ask for; 0: none in particular.
std::int32_t helpers_of_strips(const Problem& problem, const Machine& machine, const TileParams& tile,
                               std::int32_t asked);
/// The columns of a strip in a slice.
Slice columns_of(Slice slice, const ReplicatedTokens::Strip& strip);

}  // namespace shingle::planner
