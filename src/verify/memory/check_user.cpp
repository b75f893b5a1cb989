// Accesses of the user between two epochs: provides the inputs and checks the outputs. In a context, other
// calls use the internal buffers there.
#include "check.hpp"

#include <fmt/format.h>

namespace shingle {

namespace {

/// Content of an output of attention alone.
Content::Of attention_result(const Problem& problem, Role role) {
  if (role == Role::keys_grad) return Content::Of::keys_grad;
  if (role == Role::values_grad) return Content::Of::values_grad;
  if (role == Role::out_lse) return Content::Of::lse;
  return problem.traits().backward ? Content::Of::q_grad : Content::Of::attended;
}

}  // namespace

void MemoryCheck::user(const Segment& s, std::int32_t index) {
  if (const Workload* workload = plan_.workload()) return workload_user(*workload, s, index);
  const Problem& p = plan_.problem();
  if (s.epoch > 0) {
    const std::uint8_t before_norm = static_cast<std::uint8_t>(
        (p.result_epilogue().any() ? epilogue_done : 0) | (p.norm.residual ? residual_done : 0));
    check_output(s, index, Role::out,
                 static_cast<std::uint8_t>(before_norm | (p.norm.enabled ? norm_done : 0)));
    check_output(s, index, Role::sum, before_norm);
    check_output(s, index, Role::keys_grad, 0);
    check_output(s, index, Role::values_grad, 0);
    check_output(s, index, Role::out_lse, 0);
    for (const Role role : {Role::dropped, Role::counts}) check_slot_output(s, index, role);
  }
  overwrite_all(s, index);
  for (const Buffer& buffer : plan_.buffers)
    if (is_input(buffer.role)) provide_input(s, buffer.role);
}

/// The user may overwrite inputs of the last epoch and poisons outputs, so any access still in flight is a
/// race. In a context, another call may read and write every byte of the arena. A rank clears the copy of a
/// flagged buffer in the epoch behind the one that used it: at the latest before the epoch begins in which
/// peers may store to it again.
void MemoryCheck::overwrite_all(const Segment& s, std::int32_t index) {
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.role != Role::internal || buffer.flagged || setting_ == Setting::context)
      memory_.overwrite(
          place(whole(plan_, static_cast<std::int32_t>(b), s.rank), buffer.flagged ? s.epoch + 1 : s.epoch),
          index);
  }
}

void MemoryCheck::provide_input(const Segment& s, Role role) {
  const Problem& p = plan_.problem();
  const Place all = place(whole(plan_, find_buffer(plan_, role), s.rank), s.epoch);
  const std::uint64_t own = std::uint64_t{1} << s.rank;
  // If each rank has its own result, parameters and residual also belong to the rank.
  const std::uint64_t whose = p.op == Op::gemm || (p.traits().gathers() && !p.traits().reduces()) ? own : 0;
  // If the result of a first product is gathered, rows of any rank pass it, so the weight belongs to no rank
  // in particular.
  const std::uint64_t made_with = p.op == Op::gemm_allgather_gemm ? 0 : own;
  const auto set = [&](const Rect& rect, Content content) {
    content.epoch = s.epoch;
    memory_.hold({all.buffer, all.rank, all.copy, rect}, content);
  };
  switch (role) {
    case Role::a:
      if (p.has_slots() && p.traits().takes_tokens()) return provide_tokens(all, s);
      for (const GlobalRun& run : p.a_runs(s.rank)) {
        const std::int64_t offset = run.global_row - run.local_row;
        // A row that all ranks have, or may get, belongs to no rank in particular.
        const bool anyones = p.traits().gathers() || p.traits().shards_tokens() || p.traits().takes_tokens();
        const std::uint64_t ranks = anyones ? 0 : own;
        if (p.traits().is_collective())  // a collective alone moves or sums C itself
          set({run.local_row, run.rows, 0, p.k},
              {Content::Of::c, 0, 0, offset, 0, ranks, 0, values_.input(s.rank)});
        else if (p.transpose_a)
          set({0, p.k, run.local_row, run.rows}, {Content::Of::a, 0, 0, 0, offset, ranks});
        else
          set({run.local_row, run.rows, 0, p.k}, {Content::Of::a, 0, 0, offset, 0, ranks});
      }
      return;
    case Role::residual:
      for (const GlobalRun& run : p.out_runs(s.rank))
        set({run.local_row, run.rows, 0, p.out_cols()},
            {Content::Of::residual, 0, 0, run.global_row - run.local_row, 0, whose});
      return;
    case Role::b:
      set(all.rect, {Content::Of::b, 0, 0, 0, 0, made_with});
      return;
    case Role::down:
      set(all.rect, {Content::Of::down, 0, 0, 0, 0, own});
      return;
    case Role::topk_weights: {
      const GlobalRun tokens = p.out_runs(s.rank).front();
      set(all.rect, {Content::Of::topk_weights, 0, 0, tokens.global_row - tokens.local_row, 0, own});
      return;
    }
    case Role::topk_ids:
      set(all.rect, {Content::Of::topk_ids, 0, 0, 0, 0, source_bit(s.rank)});
      return;
    case Role::bias:
      set(all.rect, {Content::Of::bias, 0, 0, 0, 0, p.traits().chains() ? made_with : whose});
      return;
    case Role::keys:
    case Role::values:
      // As with A, a row of a whole matrix belongs to no rank in particular; a rank's own heads belong to it.
      for (const GlobalRun& run : p.a_runs(s.rank))
        set({run.local_row, run.rows, 0, p.kv_cols()},
            {role == Role::keys ? Content::Of::keys : Content::Of::values, 0, 0,
             run.global_row - run.local_row, 0, p.traits().shards_tokens() ? 0 : own});
      return;
    case Role::grad:
    case Role::attended:
    case Role::lse:
      for (const GlobalRun& run : p.a_runs(s.rank))
        set({run.local_row, run.rows, 0, all.rect.cols}, {role == Role::grad  ? Content::Of::grad
                                                          : role == Role::lse ? Content::Of::lse
                                                                              : Content::Of::attended,
                                                          0, 0, run.global_row - run.local_row});
      return;
    default:
      set(all.rect, {Content::Of::norm_weight, 0, 0, 0, 0, whose});
      return;
  }
}

void MemoryCheck::check_output(const Segment& s, std::int32_t index, Role role, std::uint8_t done) {
  const Problem& p = plan_.problem();
  const std::int32_t buffer = find_buffer(plan_, role);
  if (buffer < 0) return;
  const Slice all = whole(plan_, buffer, s.rank);
  if (p.traits().grouped) return check_grouped_output(s, index, all, done);
  int source = 0;  // source rank of the current rows, which are ordered by source
  for (const GlobalRun& run : p.out_runs(s.rank)) {
    Content expected{
        Content::Of::c, done, s.epoch - 1, run.global_row - run.local_row, 0, std::uint64_t{1} << s.rank};
    if (p.traits().reduces()) expected.ranks = everyone_;
    if (p.op == Op::allgather || p.traits().shards_tokens()) expected.ranks = 0;
    if (p.traits().shards_tokens()) expected.of = attention_result(p, role);
    if (p.op == Op::gemm_alltoall || p.op == Op::alltoall) {
      while (p.routing->global_base(source + 1) <= run.global_row) ++source;
      expected.ranks = std::uint64_t{1} << source;
    }
    Place at = place(all, s.epoch - 1);
    at.rect = {run.local_row, run.rows, 0, all.cols};
    expect(at, index, expected);
  }
}

/// Rows by expert: products of tokens with the expert's weight. Or tokens: sums of all their choices.
void MemoryCheck::check_grouped_output(const Segment& s, std::int32_t index, const Slice& all,
                                       std::uint8_t done) {
  const Problem& p = plan_.problem();
  const Routing& routing = *p.routing;
  const auto expect_rows = [&](std::int64_t row, std::int64_t rows, const Content& expected) {
    Place at = place(all, s.epoch - 1);
    at.rect = {row, rows, 0, all.cols};
    expect(at, index, expected);
  };
  Content expected{Content::Of::c, done, s.epoch - 1};
  if (p.traits().after) {
    const GlobalRun tokens = p.out_runs(s.rank).front();
    expected.done = combined_done;
    expected.row = tokens.global_row;
    if (p.traits().reduces()) expected.ranks = everyone_;
    return expect_rows(0, tokens.rows, expected);
  }
  expected.ranks = std::uint64_t{1} << s.rank;
  const std::vector<Routing::Row> rows = routing.received_rows(s.rank);
  budget_.spend(Budget::expanded, static_cast<std::int64_t>(rows.size()));
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto [source, routed] = rows[row];
    const GlobalRun tokens = p.a_runs(source).front();
    const std::int64_t of = p.has_slots() ? routing.global_base(source) + routed
                                          : tokens.global_row + routed % larger(tokens.rows, 1);
    expected.row = of - static_cast<std::int64_t>(row);
    expected.weight = routing.weight_of(routing.dest(source, routed));
    expect_rows(static_cast<std::int64_t>(row), 1, expected);
  }
}

void MemoryCheck::expect(const Place& at, std::int32_t index, const Content& expected) {
  memory_.read(at, index, 0, [&](const Rect& rect, const Content& found) {
    if (same_elements(found, expected)) {
      if (is_gradient(found.of) || found.of == Content::Of::lse) check_complete(at, rect, found);
      // Rounding statements are about results in the problem's dtype.
      const bool operand =
          found.of != Content::Of::lse && found.of != Content::Of::counts && found.of != Content::Of::dropped;
      if (operand) results_.note(at, rect, found);
      return;
    }
    const auto text = [&](const Content& c) {
      return c.of == Content::Of::nothing
                 ? std::string("nothing")
                 : fmt::format("{}, row {}, column {}", text_of(c), rect.row + c.row, rect.col + c.col);
    };
    throw CheckFailure{"content", fmt::format("{} should be {} at its start, but holds {}",
                                              memory_.describe(at, rect), text(expected), text(found))};
  });
}

}  // namespace shingle
