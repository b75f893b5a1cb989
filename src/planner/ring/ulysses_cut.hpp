// ulysses-attention in slices: cuts of heads and tokens, and the order of a rank's items.
#pragma once

#include <vector>

#include "planner/common/ulysses.hpp"
#include "ring.hpp"

namespace shingle::planner {

/// The attention of one piece of queries with the heads of one group. The queries are those of the rank
/// `behind` places behind on the ring.
struct Item {
  std::int64_t group = 0;
  int behind = 0;
  std::int64_t piece = 0;
};

/// Cuts of heads and tokens, the same on all ranks. With n heads for each rank, group g has heads [g · W · n,
/// (g + 1) · W · n). Rank r attends with the r-th n heads, so the columns that it sends in a group are
/// adjacent.
class Cut {
 public:
  explicit Cut(const RingBuilder& build);

  std::int64_t groups, pieces;
  std::int64_t q, kv;  ///< columns of a rank's part of a group

  /// First row of a piece in a shard, and the number of rows that the shard has there.
  std::int64_t begin(std::int64_t piece) const { return chunk_begin(p_.shard_rows(), pieces, piece); }
  std::int64_t rows(int shard, std::int64_t piece) const {
    return larger(smaller(begin(piece + 1), p_.a_rows(shard)) - begin(piece), 0);
  }
  /// Rank `places` places behind, or ahead, on the ring.
  int behind(int rank, int places) const { return (rank + p_.world - places) % p_.world; }
  int ahead(int rank, int places) const { return (rank + places) % p_.world; }

  /// Items in order; own queries come last. If there are several items of own queries, one of them comes
  /// first, because it waits only for K and V.
  std::vector<Item> items() const;

 private:
  const Problem& p_;
};

}  // namespace shingle::planner
