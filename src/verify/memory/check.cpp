#include "check.hpp"

#include <fmt/format.h>

#include "shingle/plan/print.hpp"

namespace shingle {

ComputeRules::ComputeRules(const Problem& problem)
    : a(problem.traits().attends ? Content::Of::attended : Content::Of::a),
      transpose_a(problem.transpose_a),
      transpose_b(problem.transpose_b),
      chains(problem.traits().chains()),
      k(problem.k),
      inner(problem.inner),
      b_cols(problem.b_cols()),
      out_cols(problem.out_cols()),
      product(problem.epilogue),
      result(problem.result_epilogue()),
      norm(problem.norm) {}

MemoryCheck::MemoryCheck(const Plan& plan, const Schedule& schedule, const Order& order, Setting setting,
                         Budget& budget)
    : plan_(plan),
      schedule_(schedule),
      setting_(setting),
      budget_(budget),
      memory_(plan, schedule, order, setting, budget),
      values_(plan.dtype(), plan.world(), budget),
      results_(plan, values_, budget),
      rules_(std::visit([](const auto& work) { return ComputeRules(work); }, plan.work)) {
  const int world = plan.world();
  everyone_ = world == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << world) - 1;
}

Place MemoryCheck::place(const Slice& slice, std::int32_t epoch) const {
  return {slice.buffer,
          slice.rank,
          epoch % plan_.buffers[slice.buffer].depth,
          {slice.row, slice.rows, slice.col, slice.cols}};
}

Place MemoryCheck::piece_place(const Slice& slice, std::int64_t row, std::int64_t rows, std::int64_t col,
                               std::int64_t cols, std::int32_t epoch) const {
  return {slice.buffer, slice.rank, epoch % plan_.buffers[slice.buffer].depth, {row, rows, col, cols}};
}

void MemoryCheck::fail_content(const Segment& s, const std::string& text) const {
  throw CheckFailure{"content", where(plan_, s.rank, s.lane, s.step) + " " + text};
}

std::optional<CheckFailure> MemoryCheck::run() {
  try {
    for (const Event& event : schedule_.events) {
      if (event.kind == EventKind::collective) {
        collective(event.segments);
        continue;
      }
      if (event.kind == EventKind::message) {
        message(event);
        continue;
      }
      const std::int32_t index = event.segments[0];
      const Segment& s = schedule_.segments[index];
      if (s.lane < 0) {
        user(s, index);
        continue;
      }
      const Step& step = step_of(s);
      if (const auto* g = std::get_if<Gemm>(&step)) gemm(*g, s, index);
      if (const auto* e = std::get_if<Elementwise>(&step)) elementwise(*e, s, index);
      if (const auto* a = std::get_if<Attend>(&step)) {
        spend_items(a->grid, s.last - s.first);
        for (std::int64_t item = s.first; item < s.last; ++item)
          if (!a->grid.phantom(a->grid.tile(item))) attend_tile(*a, s, index, item);
      }
      if (const auto* m = std::get_if<Merge>(&step)) {
        spend_items(m->grid, s.last - s.first);
        for (std::int64_t item = s.first; item < s.last; ++item)
          if (!m->grid.phantom(m->grid.tile(item))) merge_tile(*m, s, index, item);
      }
      if (const auto* b = std::get_if<AttendBackward>(&step)) {
        spend_items(b->grid, s.last - s.first);
        for (std::int64_t item = s.first; item < s.last; ++item)
          if (!b->grid.phantom(b->grid.tile(item))) attend_backward_tile(*b, s, index, item);
      }
      if (const auto* r = std::get_if<AssignSlots>(&step)) assign_slots(*r, s, index);
      if (const auto* r = std::get_if<MergeSlots>(&step)) merge_slots(*r, s, index);
      if (const auto* f = std::get_if<Fill>(&step))
        memory_.write(place(f->slice, s.epoch), index, 0, Content{});
      if (const auto* c = std::get_if<Copy>(&step)) copy(c->from, {index, 0}, c->to, {index, 0});
      if (const auto* b = std::get_if<Broadcast>(&step))
        for (const Slice& to : b->to) copy(b->from, {index, 0}, to, {index, 0});
      if (const auto* w = std::get_if<Swap>(&step)) swap(*w, s, index);
    }
    results_.check_statement();
  } catch (const CheckFailure& failure) {
    return failure;
  }
  return std::nullopt;
}

std::uint8_t MemoryCheck::check_epilogue(const Content& content, const Epilogue& epilogue, const Segment& s) {
  if (!epilogue.any()) return content.done;
  if (content.done != 0) fail_content(s, "applies the epilogue a second time");
  if (plan_.problem().traits().reduces() && content.ranks != everyone_)
    fail_content(s, "applies the epilogue before all ranks are summed");
  return epilogue_done;
}

/// Requires elements [first, first + cols) of a row vector to belong to columns `logical` on. Any item of the
/// step may read them. Returns the ranks that own them; 0: no rank in particular.
std::uint64_t MemoryCheck::check_vector(const Slice& vector, Content::Of of, const Segment& s,
                                        std::int32_t index, std::int64_t first, std::int64_t cols,
                                        std::int64_t logical) {
  if (first < 0 || first + cols > vector.cols)
    fail_content(s, fmt::format("reads elements {} to {} of a row vector that has {}", first, first + cols,
                                vector.cols));
  const Place at = piece_place(vector, vector.row, 1, vector.col + first, cols, s.epoch);
  std::uint64_t ranks = 0;
  bool first_cell = true;
  memory_.read(at, index, -1, [&](const Rect& cell, const Content& c) {
    if (c.of != of || c.epoch != s.epoch || c.col + at.rect.col != logical ||
        (!first_cell && c.ranks != ranks))
      fail_content(s, fmt::format("reads {} ({}) as elements {} to {} of a row vector",
                                  memory_.describe(at, cell), text_of(c), logical, logical + cols));
    ranks = c.ranks;
    first_cell = false;
  });
  return ranks;
}

/// Parameters and residuals that each rank has for itself must be applied to its own products.
void MemoryCheck::check_owner(const Segment& s, std::uint64_t ranks, const Content& product) const {
  if (ranks != 0 && ranks != product.ranks)
    fail_content(s, "applies one rank's parameters or residual to the product of another");
}

}  // namespace shingle
