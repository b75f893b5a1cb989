#include "values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shingle {
namespace {

constexpr std::size_t most_text = 120;
constexpr std::int64_t node_bytes = 96;  // in the list and the hash table

}  // namespace

std::size_t ValueTable::Hash::operator()(const Node& node) const {
  std::uint64_t hash = static_cast<std::uint64_t>(node.kind) << 8 | static_cast<std::uint64_t>(node.dtype);
  for (const std::int32_t part : {node.a, node.b, node.c, node.d})
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(hash ^ hash >> 29);
}

ValueTable::Id ValueTable::intern(const Node& node) {
  const auto [found, added] = ids_.emplace(node, static_cast<Id>(nodes_.size()));
  budget_.spend(Budget::expanded, 1);
  if (added) {
    budget_.spend(Budget::accessed, 1);
    budget_.keep(Budget::cells, node_bytes);
    nodes_.push_back(node);
  }
  return found->second;
}

ValueTable::Id ValueTable::sum(Id a, Id b) {
  return intern({Kind::sum, DType::f32, std::min(a, b), std::max(a, b), 0});
}

ValueTable::Id ValueTable::stored(Id value, DType dtype) {
  if (value == 0 || dtype == DType::f32 || at(value).dtype == dtype) return value;
  return intern({Kind::rounded, dtype, value, 0, 0});
}

ValueTable::Id ValueTable::beside(Id row, Id next, std::int64_t col) {
  if (row == next || (at(row).kind == Kind::row && at(row).b == next)) return row;
  return intern({Kind::row, DType::f32, row, next, static_cast<std::int32_t>(col)});
}

ValueTable::Id ValueTable::library(Id told, const std::array<std::int32_t, 3>& call, DType dtype) {
  const auto number = calls_.emplace(call, static_cast<std::int32_t>(calls_.size())).first->second;
  return intern({Kind::library, dtype, told, number, 0});
}

bool ValueTable::is_leaf(Id value, int rank) const {
  const Node& node = at(value);
  return (node.kind == Kind::product || node.kind == Kind::input) && (rank < 0 || node.a == rank);
}

/// True if the value is a product of a rank, or a sum of its products for the choices of a token.
bool ValueTable::is_term(Id value, int rank) const {
  if (is_leaf(value, rank)) return true;
  if (at(value).kind != Kind::merge) return false;
  for (; at(value).kind == Kind::merge; value = at(value).a)
    if (!is_part(at(value).b, rank, dtype_)) return false;
  return value == 0;
}

bool ValueTable::is_part(Id value) const {
  return is_leaf(at(value).kind == Kind::rounded ? at(value).a : value, -1);
}

/// True if the value is one rank's part of a sum, as it is sent.
bool ValueTable::is_part(Id value, int rank, DType staged) const {
  if (at(value).kind == Kind::input) return at(value).a == rank;
  if (staged == DType::f32) return is_term(value, rank);
  return at(value).kind == Kind::rounded && at(value).dtype == staged && is_term(at(value).a, rank);
}

/// Rank of the part that a fold adds in a turn.
int ValueTable::Fold::rank(int turn, int world) const {
  if (!ascending) return (first + turn) % world;
  if (turn == 0) return first;
  return turn <= first ? turn - 1 : turn;
}

/// True if the value sums all ranks' parts as the fold says.
bool ValueTable::is_fold(Id value, const Fold& fold) const {
  for (int turn = world_ - 1; turn > 0; --turn) {
    const Node& node = at(value);
    const int rank = fold.rank(turn, world_);
    if (node.kind != Kind::sum) return false;
    if (!is_part(node.a, rank, fold.staged) && !is_part(node.b, rank, fold.staged)) return false;
    value = is_part(node.a, rank, fold.staged) ? node.b : node.a;
    if (!fold.rounded || turn == 1 || dtype_ == DType::f32) continue;
    if (at(value).kind != Kind::rounded || at(value).dtype != dtype_) return false;
    value = at(value).a;
  }
  return is_part(value, fold.first, fold.first_as);
}

/// True if the value is a collective's sum of all ranks' parts, in rank order.
bool ValueTable::is_library(Id value) const {
  if (at(value).kind != Kind::library) return false;
  value = at(value).a;
  for (int rank = world_ - 1; rank >= 0; --rank) {
    const Node& list = at(value);
    if (list.kind != Kind::list || !is_part(list.b, rank, dtype_)) return false;
    value = list.a;
  }
  return value == 0;
}

/// True if the value merges partial attentions that were rounded, and merges of such that were not.
bool ValueTable::is_merge(Id value) const {
  for (; at(value).kind == Kind::merge; value = at(value).a)
    if (!is_part(at(value).b, -1, dtype_) && !is_merge(at(value).b)) return false;
  return value == 0;
}

/// True if the value sums parts that were rounded, and sums of such, rounded or not.
bool ValueTable::is_sum_of_parts(Id value) const {
  const auto is_term = [&](Id term) {
    const Node& node = at(term);
    return is_part(term, -1, dtype_) || is_sum_of_parts(term) ||
           (node.kind == Kind::rounded && node.dtype == dtype_ && is_sum_of_parts(node.a));
  };
  const Node& node = at(value);
  return node.kind == Kind::sum && is_term(node.a) && is_term(node.b);
}

bool ValueTable::is_summed(Id value, const Rounding& statement, int owner) const {
  if (world_ == 1 && is_leaf(value, 0)) return true;
  // Of a sum that all ranks hold alike, any rank may be the owner.
  const auto by_owner = [&](auto&& holds) {
    if (owner >= 0) return holds(owner);
    for (int rank = 0; rank < world_; ++rank)
      if (holds(rank)) return true;
    return false;
  };
  switch (statement.summing) {
    case Summing::none:
      return is_leaf(value, -1);
    case Summing::library:  // a workload has products besides sums; operators have no leaf that is a sum
                            // of all ranks
      return is_library(value) || is_leaf(value, -1);
    case Summing::parts:
      return is_leaf(value, -1) || is_merge(value) || is_sum_of_parts(value);
    case Summing::rank_order:
      return is_fold(value, {0, true, statement.staged, statement.staged, false}) ||
             (world_ == 1 && is_term(value, 0));
    case Summing::owner_first:
      return by_owner(
          [&](int rank) { return is_fold(value, {rank, true, DType::f32, statement.staged, false}); });
    case Summing::ring:
      return by_owner(
          [&](int rank) { return is_fold(value, {(rank + 1) % world_, false, dtype_, dtype_, true}); });
    case Summing::steps:
      return true;
  }
  return false;
}

bool ValueTable::satisfies(Id result, const Rounding& statement, int owner) const {
  if (statement.summing == Summing::steps) return true;
  const auto unrounded = [&](Id value) {
    return at(value).kind == Kind::rounded && at(value).dtype == dtype_ ? at(value).a : value;
  };
  Id value = unrounded(result);
  bool last_pass = false, holds = true;
  const auto check = [&](Id part) {
    last_pass = last_pass || at(part).dtype == dtype_;
    holds = holds && is_summed(unrounded(part), statement, owner);
  };
  if (at(value).kind == Kind::pass) {
    for (value = at(value).a; at(value).kind == Kind::row; value = at(value).a) check(at(value).b);
    check(value);
  } else {
    holds = is_summed(value, statement, owner);
  }
  // In f32 memory rounding changes nothing, so a pass cannot be told from its inputs.
  return holds && (dtype_ == DType::f32 || last_pass == statement.last_pass);
}

void ValueTable::write(Id value, std::string& text) const {
  if (text.size() > most_text) return;
  const Node& node = at(value);
  const auto inside = [&](std::string_view before, Id one, std::string_view between, Id other) {
    text += before;
    write(one, text);
    text += between;
    if (other != 0) write(other, text);
  };
  switch (node.kind) {
    case Kind::nothing:
      return;
    case Kind::input:
      text += fmt::format("A{}", node.a);
      return;
    case Kind::product:
      text += fmt::format("C{}", node.a);
      return;
    case Kind::sum: {
      const bool later =
          is_part(node.a) && !is_part(node.b);  // the term that was added to a sum is written last
      inside("(", later ? node.b : node.a, " + ", later ? node.a : node.b);
      text += ")";
      return;
    }
    case Kind::rounded:
      inside(fmt::format("{}(", name(node.dtype)), node.a, ")", 0);
      return;
    case Kind::pass:
      inside("pass(", node.a, ")", 0);
      return;
    case Kind::row:
      return inside("", node.b, " | ...", 0);
    case Kind::list:
      return inside("", node.a, node.a == 0 ? "" : ", ", node.b);
    case Kind::merge:
      return inside("", node.a, node.a == 0 ? "merge of " : ", ", node.b);
    case Kind::library:
      inside("library(", node.a, ")", 0);
      return;
  }
}

std::string ValueTable::text_of(Id value) const {
  std::string text;
  write(value, text);
  if (text.size() > most_text) text = text.substr(0, most_text) + "...";
  return text;
}

}  // namespace shingle
