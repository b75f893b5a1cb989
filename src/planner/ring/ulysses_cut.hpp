// ulysses-attention in slices: cuts of heads and tokens, the order of a rank's items, and where their rows
// lie.
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

/// What the plans of a rank have in common, whatever carries rows to other ranks.
class UlyssesSide {
 public:
  UlyssesSide(RingBuilder& build, const Cut& cut, const std::vector<Item>& items, int rank)
      : build_(build), cut_(cut), items_(items), rank_(rank), own_rows_(build.problem().a_rows(rank)) {}

 protected:
  std::int64_t count() const { return static_cast<std::int64_t>(items_.size()); }
  const Item& at(std::int64_t t) const { return items_[static_cast<std::size_t>(t)]; }
  /// True if a group's first item is the t-th.
  bool begins_group(std::int64_t t) const { return t == 0 || at(t).group != at(t - 1).group; }
  std::int64_t first_token(int shard, std::int64_t piece = 0) const {
    return shard * build_.problem().shard_rows() + cut_.begin(piece);
  }
  /// Consecutive tokens in a rank's buffer with a row for each group and token.
  Slice tokens(std::int32_t buffer, int rank, std::int64_t group, std::int64_t first,
               std::int64_t rows) const {
    return build_.rows(buffer, rank, group * build_.problem().m + first, rows);
  }
  /// The columns that rank `by` attends to in a group, of some rows of the user's matrix on rank `of`.
  /// `cols`: columns of a rank's part of a group.
  Slice heads(std::int32_t buffer, int of, int by, std::int64_t group, std::int64_t cols, std::int64_t first,
              std::int64_t rows) const {
    return columns(build_.rows(buffer, of, first, rows), (group * build_.world() + by) * cols, cols);
  }
  /// K or V of a slice that has them side by side.
  Slice keys(const Slice& kv) const { return columns(kv, 0, cut_.kv); }
  Slice values(const Slice& kv) const { return columns(kv, cut_.kv, cut_.kv); }
  /// The own queries of an item, and the place of their result.
  Slice own(std::int32_t buffer, const Item& item) const {
    return heads(buffer, rank_, rank_, item.group, cut_.q, cut_.begin(item.piece),
                 cut_.rows(rank_, item.piece));
  }
  void copy(const Slice& from, const Slice& to);
  /// Copies K and V of the own tokens with the own heads of a group, to a buffer with K beside V.
  void keep_keys_and_values(std::int32_t buffer, std::int64_t group);

  RingBuilder& build_;
  const Cut& cut_;
  const std::vector<Item>& items_;
  int rank_;
  std::int64_t own_rows_;
};

}  // namespace shingle::planner
