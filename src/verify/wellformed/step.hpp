// Well-formed: checks of one step by itself. All of the plan except its steps has been checked before.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check.hpp"
#include "shingle/plan/print.hpp"

namespace shingle::wellformed {

/// Name of a field in a failure, as in "from[2].slice". The text is made only if a check fails.
struct Field {
  std::string_view name;
  std::size_t index = npos;
  std::string_view part = {};

  static constexpr std::size_t npos = ~std::size_t{0};
  Field at(std::string_view inner) const { return {name, index, inner}; }
  std::string text() const {
    return fmt::format("{}{}{}{}", name, index == npos ? "" : fmt::format("[{}]", index),
                       part.empty() ? "" : ".", part);
  }
};

inline bool overlap(const Slice& a, const Slice& b) {
  if (a.rows == 0 || b.rows == 0) return false;
  return a.buffer == b.buffer && a.rank == b.rank && a.row < b.row + b.rows && b.row < a.row + a.rows &&
         a.col < b.col + b.cols && b.col < a.col + a.cols;
}

class StepCheck {
 public:
  StepCheck(const Plan& plan, int rank, int lane, int step)
      : plan_(plan), rank_(rank), lane_(lane), step_(step) {}

  void operator()(const Gemm& g) const;
  void operator()(const Elementwise& e) const;
  void operator()(const Attend& a) const;
  void operator()(const Merge& m) const;
  void operator()(const AttendBackward& a) const;
  void operator()(const AssignSlots& r) const;
  void operator()(const MergeSlots& m) const;
  void operator()(const Collective& c) const;
  void operator()(const Exchange& e) const;

  void operator()(const Await& a) const {
    counter(a.counter);
    const LaneKind kind =
        plan_.ranks[static_cast<std::size_t>(rank_)].lanes[static_cast<std::size_t>(lane_)].kind;
    require(a.counter.rank == rank_ || kind == LaneKind::copy, {"counter"},
            "on rank {}: only copy engines poll another rank's counters", a.counter.rank);
    require(a.target <= max_count, {"target"}, "{} is above {}", a.target, max_count);
  }
  void operator()(const Notify& n) const {
    counter(n.counter);
    require(n.value >= 1 && n.value <= max_count, {"value"}, "{} is outside [1, {}]", n.value, max_count);
  }
  void operator()(const Fill& f) const {
    store({"slice"}, f.slice);
    of_all_tokens({"slice"}, f.slice);
  }
  void operator()(const Copy& c) const { copy({"from"}, c.from, {"to"}, c.to); }
  void operator()(const Broadcast& b) const {
    copy({"from"}, b.from, {"to", 0}, b.to[0]);
    copy({"from"}, b.from, {"to", 1}, b.to[1]);
    require(!overlap(b.to[0], b.to[1]), {"to"}, "both destinations overlap");
  }
  void operator()(const Swap& s) const {
    store({"a"}, s.a);
    copy({"a"}, s.a, {"b"}, s.b);
  }

 private:
  template <class... Args>
  void require(bool ok, const Field& field, fmt::format_string<Args...> message, Args&&... args) const {
    if (!ok)
      throw Flaw{fmt::format("{}: {}: {}", where(plan_, rank_, lane_, step_), field.text(),
                             fmt::format(message, std::forward<Args>(args)...))};
  }
  template <class Table>
  void index(std::int64_t i, const Table& table, const Field& field, const char* what) const {
    require(i >= 0 && i < static_cast<std::int64_t>(table.size()), field, "{} is none of the plan's {} {}", i,
            table.size(), what);
  }
  const Buffer& buffer(const Slice& s) const { return plan_.buffers[static_cast<std::size_t>(s.buffer)]; }

  void counter(const CounterRef& c) const;
  void slice(const Field& field, const Slice& s) const;
  void own(const Field& field, const Slice& s) const;
  void store(const Field& field, const Slice& s) const;
  void contiguous(const Field& field, const Slice& s) const;
  void copy(const Field& from_field, const Slice& from, const Field& to_field, const Slice& to) const;
  void vector(const Field& field, const Slice& s, bool wanted, std::int64_t cols) const;
  void grid(const TileGrid& g) const;
  void groups(const Field& field, const std::vector<std::int64_t>& ends, const TileGrid& g) const;
  void groups(const Gemm& g) const;
  void live(const Gemm& g) const;
  void sums(const Gemm& g) const;
  void place_of_sums(const Gemm& g, std::size_t index) const;
  void rows_in_place(const Field& field, const Placement& at) const;
  void parts_of_sums(const Gemm& g, const RowMap& rows, std::size_t index) const;
  void picks(const Elementwise& e, std::size_t source) const;
  void tokens_in_place(const Field& field, const Placement& at) const;
  void of_all_tokens(const Field& field, const Slice& s) const;
  void numbers(const Field& field, const Slice& s, std::int64_t rows, std::int64_t cols) const;
  static TileGrid placed_rows(const Gemm& g);
  void row_map(const Field& field, const RowMap& map, std::int64_t virtual_rows, std::int64_t rows) const;
  void placement(const Field& field, const Placement& p, const TileGrid& g, std::int64_t wide = 0) const;
  void placed(const Field& field, const Slice& s, const placement::Matrix& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Slots& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Subtiles& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Pools& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Routed& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Owners& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Returned& p, const TileGrid& g) const;
  void placed(const Field& field, const Slice& s, const placement::Indexed& p, const TileGrid& g) const;
  void stacked(const Field& field, const Slice& s, const TileGrid& g) const;
  void one_rank(const Field& field, const Placement& p) const;
  void reaches(const Field& field, const Slice& s, int rank, std::int64_t rows) const;
  void source(const Field& field, std::int32_t source, std::int32_t dest, std::int64_t first,
              const TileGrid& g) const;
  void hooks(const std::vector<TileGate>& gates, const std::vector<TileNotify>& notifies, const TileGrid& g,
             bool adds_parts = false) const;
  void flags(const Elementwise& e) const;
  void attention(const TileGrid& g) const;
  void see_each_other(const AttendBackward& a) const;
  void lse(const Field& field, const Slice& s, std::int64_t rows, std::int64_t cols) const;
  void resources(const Resources& r) const;
  const Communicator& communicator(std::int32_t i) const;

  const Plan& plan_;
  int rank_, lane_, step_;
};

}  // namespace shingle::wellformed
