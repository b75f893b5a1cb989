// Values, by the expression that computes them. Two elements with the same number have the same bits for any
// inputs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "shingle/plan/rounding.hpp"
#include "verify/budget.hpp"

namespace shingle {

/// Expressions, each stored once. Products, sums and passes are fp32 until they are rounded.
///
/// A sum of several sources is a left fold. Addition of two fp32 values is commutative, so (C1 + C0) + C2
/// equals (C0 + C1) + C2.
class ValueTable {
 public:
  using Id = std::int32_t;  ///< 0: not tracked

  ValueTable(DType dtype, int world, Budget& budget)
      : budget_(budget), dtype_(dtype), world_(world), nodes_(1) {}

  Id input(int rank) { return intern({Kind::input, dtype_, rank, 0, 0}); }
  /// Product of a GEMM or attention step from rows of A; a is 0 if these are inputs. Two steps may accumulate
  /// in different orders.
  Id product(int rank, int lane, int step, Id a) {
    return intern({Kind::product, DType::f32, rank, lane, step, a});
  }
  Id sum(Id a, Id b);
  /// A value as memory of this type holds it.
  Id stored(Id value, DType dtype);
  /// A value after a pass that applies `done`.
  Id passed(Id value, std::uint8_t done) { return intern({Kind::pass, DType::f32, value, done, 0}); }
  /// Merge of partial attentions, given one after the other.
  Id merged(Id before, Id part) { return intern({Kind::merge, DType::f32, before, part, 0}); }
  /// A row with parts that are computed differently, from left to right; `next` begins at column `col`.
  Id beside(Id row, Id next, std::int64_t col);
  /// Result of a collective of NCCL or MPI from the values of its ranks, given one after the other by told().
  /// `call` is the step of the first rank: different calls may sum in different orders.
  Id told(Id before, Id value) { return intern({Kind::list, DType::f32, before, value, 0}); }
  Id library(Id told, const std::array<std::int32_t, 3>& call, DType dtype);

  /// True if a rounding statement holds for a result on rank `owner`; -1: for a result that all ranks hold
  /// alike.
  bool satisfies(Id result, const Rounding& statement, int owner) const;
  /// Text for messages, shortened if long: "bf16(C0) + bf16(C1)".
  std::string text_of(Id value) const;

 private:
  enum class Kind : std::uint8_t { nothing, input, product, sum, rounded, pass, row, list, library, merge };
  struct Node {
    Kind kind = Kind::nothing;
    DType dtype = DType::f32;  ///< type that represents the value exactly
    std::int32_t a = 0, b = 0, c = 0, d = 0;
    bool operator==(const Node&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Node& node) const;
  };

  Id intern(const Node& node);
  const Node& at(Id value) const { return nodes_[static_cast<std::size_t>(value)]; }
  bool is_leaf(Id value, int rank) const;
  bool is_term(Id value, int rank) const;
  bool is_part(Id value) const;
  bool is_part(Id value, int rank, DType staged) const;
  /// A sum of all ranks' parts in turn.
  struct Fold {
    int first = 0;                ///< rank whose part comes first
    bool ascending = false;       ///< the others: by rank, not around the ring
    DType first_as = DType::f32;  ///< type of the first part
    DType staged = DType::f32;    ///< type of the others
    bool rounded = false;         ///< to the problem's type after each addition

    int rank(int turn, int world) const;
  };
  bool is_fold(Id value, const Fold& fold) const;
  bool is_library(Id value) const;
  bool is_merge(Id value) const;
  bool is_sum_of_parts(Id value) const;
  bool is_summed(Id value, const Rounding& statement, int owner) const;
  void write(Id value, std::string& text) const;

  Budget& budget_;
  DType dtype_;
  int world_;
  std::vector<Node> nodes_;
  std::unordered_map<Node, Id, Hash> ids_;
  std::map<std::array<std::int32_t, 3>, std::int32_t> calls_;
};

}  // namespace shingle
