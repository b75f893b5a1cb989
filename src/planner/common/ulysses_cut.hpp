// ulysses-attention by slices: how heads and tokens are cut, and the order in which a rank takes the items.
#pragma once

#include <vector>

#include "ulysses.hpp"

namespace shingle::planner {

/// The attention of piece `piece` of the queries of the rank `behind` places behind, with heads of `group`.
struct Item {
  std::int64_t group = 0;
  int behind = 0;
  std::int64_t piece = 0;
};

/// How heads and tokens are cut: alike on all ranks. Group g has heads [g · W · n, (g + 1) · W · n), of which
/// rank r attends with the r-th n, so that what a rank sends in a group are neighbouring columns.
class Cut {
 public:
  explicit Cut(const Builder& build);

  std::int64_t groups, pieces;
  std::int64_t q, kv;  ///< columns of a rank's part of a group

  /// The row of a shard at which a piece begins; and how many it has there.
  std::int64_t begin(std::int64_t piece) const { return chunk_begin(p_.shard_rows(), pieces, piece); }
  std::int64_t rows(int shard, std::int64_t piece) const {
    return larger(smaller(begin(piece + 1), p_.a_rows(shard)) - begin(piece), 0);
  }
  /// The rank `places` places behind, or ahead, on the ring.
  int behind(int rank, int places) const { return (rank + p_.world - places) % p_.world; }
  int ahead(int rank, int places) const { return (rank + places) % p_.world; }

  /// Own queries last, and where there are several items of them one first: it waits for K and V only.
  std::vector<Item> items() const;

 private:
  const Problem& p_;
};

}  // namespace shingle::planner
