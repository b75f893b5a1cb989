// Well-formed: routing on the device, and the indices and counts that it makes.
#include <algorithm>

#include "shingle/plan/shapes.hpp"
#include "step.hpp"

namespace shingle::wellformed {

/// Counts of a grouped product's rows that have a token: all groups have one, or none.
void StepCheck::live(const Gemm& g) const {
  const bool counted = g.live != Slice{};
  if (counted) numbers({"live"}, g.live, g.live.rows, g.live.cols);
  for (std::size_t i = 0; i < g.groups.size(); ++i)
    require(counted ? g.groups[i].live >= 0 && g.groups[i].live < g.live.rows * g.live.cols
                    : g.groups[i].live == -1,
            {"groups", i, "live"}, "{} is none of the {} counts", g.groups[i].live,
            counted ? g.live.rows * g.live.cols : 0);
}

/// A matrix of indices or counts in the step's own memory.
void StepCheck::numbers(const Field& field, const Slice& s, std::int64_t rows, std::int64_t cols) const {
  own(field, s);
  require(buffer(s).dtype == DType::i32, field, "{}, not i32", name(buffer(s).dtype));
  require(s.rows == rows && s.cols == cols, field, "{}x{}, not {}x{}", s.rows, s.cols, rows, cols);
}

void StepCheck::operator()(const AssignSlots& r) const {
  require(!plan_.workload() && plan_.problem().has_slots(), {"ids"}, "the problem has no capacity");
  const Problem& p = plan_.problem();
  numbers({"ids"}, r.ids, p.m, p.experts.topk);
  numbers({"row_of"}, r.row_of, p.routing->rows(p.source_of(rank_)), 1);
  numbers({"slot_of"}, r.slot_of, p.m, p.experts.topk);
  numbers({"counts"}, r.counts, p.experts.count / p.weights(), p.weights());
  numbers({"dropped"}, r.dropped, 1, 2);
  for (const auto& [field, to] : {std::pair{"row_of", &r.row_of},
                                  {"slot_of", &r.slot_of},
                                  {"counts", &r.counts},
                                  {"dropped", &r.dropped}})
    store({field}, *to);
  resources(r.resources);
}

void StepCheck::operator()(const MergeSlots& m) const {
  require(!plan_.workload() && plan_.problem().orders_slots(), {"counts"},
          "only tensor-parallel experts with a capacity have slots of all ranks on each");
  const Problem& p = plan_.problem();
  require(m.capacity == p.experts.capacity, {"capacity"}, "{}, but experts have a capacity of {}", m.capacity,
          p.experts.capacity);
  const std::int64_t slots = p.routing->received(rank_), tokens = p.world * p.m;
  numbers({"counts"}, m.counts, p.world, p.experts.count);
  numbers({"slot_of"}, m.slot_of, tokens, p.experts.topk);
  std::vector<std::int32_t> used{m.counts.buffer, m.slot_of.buffer};
  const auto made = [&](const Field& field, const Slice& to, std::int64_t rows, std::int64_t cols) {
    if (to == Slice{}) return;
    numbers(field, to, rows, cols);
    store(field, to);
    require(std::ranges::find(used, to.buffer) == used.end(), field, "'{}' holds another matrix of the step",
            buffer(to).name);
    used.push_back(to.buffer);
  };
  require(m.live != Slice{}, {"live"}, "left out");
  made({"live"}, m.live, 1, p.experts.count);
  made({"merged_of"}, m.merged_of, tokens, p.experts.topk);
  made({"token_of"}, m.token_of, slots, 1);
  made({"row_of"}, m.row_of, slots, 1);
  made({"slot_at"}, m.slot_at, slots, 1);
  resources(m.resources);
}

/// Rows of a source that an index picks, and sources that are indices or counts.
void StepCheck::picks(const Elementwise& e, std::size_t source) const {
  const Placement& from = e.from[source];
  const Field field{"from", source};
  if (is_indexed(from)) {
    require(!row_wise(e), field, "a row-wise pass picks no rows by an index");
    require(from.slice.rank == rank_, field, "picks rows of rank {}, not the step's own", from.slice.rank);
    require(from.slice.buffer != e.to.slice.buffer, field, "picks rows of '{}', to which the pass stores",
            buffer(from.slice).name);
  }
  tokens_in_place(field, from);
  const bool numbers = !is_floating(buffer(from.slice).dtype);
  require(numbers == !is_floating(buffer(e.to.slice).dtype), field, "{}, but `to` is {}",
          name(buffer(from.slice).dtype), name(buffer(e.to.slice).dtype));
  require(!numbers || (e.from.size() == 1 && !e.epilogue.any() && !row_wise(e) && e.factors == Slice{}),
          field, "indices and counts are only moved");
}

/// In a call a rank may have fewer tokens than the plan, and a pass leaves out the rows of the others. So row
/// v of the pass must be token v of the rank.
void StepCheck::tokens_in_place(const Field& field, const Placement& at) const {
  if (is_indexed(at) || plan_.workload() != nullptr || !counts_tokens(plan_.problem(), buffer(at.slice).role))
    return;
  const auto* const matrix = std::get_if<placement::Matrix>(&at.form);
  require(at.slice.rank == rank_ && at.slice.row == 0 && matrix != nullptr && matrix->ranks.empty() &&
              matrix->rows == RowMap::identity(at.slice.rows),
          field, "'{}' may have fewer rows in a call: a pass takes them in their order, from the first on",
          buffer(at.slice).name);
}

/// Other steps move all rows of a slice.
void StepCheck::of_all_tokens(const Field& field, const Slice& s) const {
  require(plan_.workload() != nullptr || !counts_tokens(plan_.problem(), buffer(s).role), field,
          "a call may have fewer rows of '{}': only passes leave these out", buffer(s).name);
}

void StepCheck::placed(const Field& field, const Slice&, const placement::Indexed& p,
                       const TileGrid& g) const {
  require(field.name == "from", field, "rows are picked by an index: only loads of a pass do so");
  numbers(field.at("index"), p.index, g.rows, 1);
}

}  // namespace shingle::wellformed
