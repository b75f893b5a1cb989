// Plans of tensor-parallel experts that route on the device and are wrong in one place are refused.
#include <gtest/gtest.h>

#include <string_view>

#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/random_problem.hpp"

namespace shingle::sliced_slots_mutation_test {
namespace {

using test::expect_refused;

constexpr Op operators[] = {Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};
constexpr int ranks = 3, experts = 4, capacity = 5, tokens = 8;
constexpr std::int64_t slots_of_rank = experts * capacity;

Problem slots(Op op) {
  Problem problem{.op = op, .world = ranks, .n = 12, .k = 10, .experts = {experts, 2, capacity}};
  if (problem.traits().chains()) problem.inner = 14;
  return with_m(problem, tokens);
}

std::vector<Plan> plans(Op op) {
  Machine machine;
  machine.workers = 8, machine.collective_workers = 1;
  const std::int32_t none = FusedParams::no_helpers;
  return {plan_sequential(slots(op), machine, {}).value(),
          plan_chunked(slots(op), machine, {.chunks = 3}).value(),
          plan_signal(slots(op), machine, {.helpers = 2}).value(),
          plan_signal(slots(op), machine, {.helpers = none}).value(),
          plan_fused(slots(op), machine, {.helpers = 2}).value(),
          plan_fused(slots(op), machine, {.helpers = none}).value()};
}

/// True if a slice is of the buffer with this name.
bool is(const Plan& plan, const Slice& slice, std::string_view name) {
  return slice.buffer >= 0 && plan.buffers[static_cast<std::size_t>(slice.buffer)].name == name;
}
bool is(const Plan& plan, const CounterRef& counter, std::string_view name) {
  return plan.counters[static_cast<std::size_t>(counter.counter)].name == name;
}

/// The same slice in the part of the next rank, of a buffer with `part` rows for each.
void to_next_part(Slice& slice, std::int64_t part) {
  slice.row = (slice.row + part) % (ranks * part);
}

/// As expect_refused(), for what only some plans have. Returns true if this one has it.
template <class S>
bool expect_refused_where(const Plan& plan, const std::string& rule, const std::function<bool(S&)>& edit) {
  const auto has = [&](Step step) {
    auto* const of = std::get_if<S>(&step);
    return of != nullptr && edit(*of);
  };
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      if (std::ranges::any_of(lane.steps, has)) {
        expect_refused<S>(plan, rule, edit);
        return true;
      }
  return false;
}

/// Every pass that picks rows by a column of this buffer, changed one after the other.
void expect_picks_refused(const Plan& plan, std::string_view by, const std::string& rule,
                          const std::function<void(Elementwise&, Slice&)>& edit) {
  test::expect_pass_refused(plan, rule, [&](Elementwise& pass) {
    auto* const picked = std::get_if<placement::Indexed>(&pass.from.front().form);
    if (picked == nullptr || !is(plan, picked->index, by)) return false;
    edit(pass, picked->index);
    return true;
  });
}

TEST(WrongSlicedSlots, TokensOfOtherSlotsOrRanks) {
  for (const Op op : {Op::allgather_grouped_gemm, Op::moe_tp})
    for (const Plan& plan : plans(op)) {
      expect_picks_refused(plan, "row_of", "",
                           [](Elementwise&, Slice& index) { to_next_part(index, slots_of_rank); });
      expect_picks_refused(plan, "row_of", "", [](Elementwise& pass, Slice&) {
        if (pass.from[0].slice.row + tokens <= (ranks - 1) * tokens)
          pass.from[0].slice.row += tokens;
        else
          pass.from[0].slice.row = 0;
        pass.from[0].slice.rows -= pass.from[0].slice.rows - tokens;
      });
      expect_picks_refused(plan, "row_of", "content",
                           [](Elementwise& pass, Slice&) { --pass.from[0].slice.rows; });
      expect_picks_refused(plan, "row_of", "",
                           [](Elementwise& pass, Slice&) { to_next_part(pass.to.slice, slots_of_rank); });
    }
}

TEST(WrongSlicedSlots, ProductsOfOtherChoicesOrRanks) {
  for (const Op op : {Op::grouped_gemm_reducescatter, Op::moe_tp})
    for (const Plan& plan : plans(op)) {
      expect_picks_refused(plan, "slot_of", "",
                           [](Elementwise&, Slice& index) { index.col = 1 - index.col; });
      expect_picks_refused(plan, "slot_of", "",
                           [](Elementwise&, Slice& index) { to_next_part(index, tokens); });
      expect_picks_refused(plan, "slot_of", "", [](Elementwise& pass, Slice&) {
        to_next_part(pass.from.front().slice, slots_of_rank);
      });
      expect_picks_refused(plan, "slot_of", "", [](Elementwise& pass, Slice&) { pass.factors = {}; });
      // All of a rank's own weights and slots, for another rank's tokens.
      expect_picks_refused(plan, "slot_of", "", [&](Elementwise& pass, Slice&) {
        if (is(plan, pass.factors, "weights"))
          to_next_part(pass.factors, tokens);
        else
          to_next_part(pass.to.slice, tokens), pass.factors.cols = 1;
      });
    }
}

TEST(WrongSlicedSlots, CountsOfOthers) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<Gemm>(plan, "content", [](Gemm& g) {
        g.groups.front().live ^= 1;  // the other expert
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        for (RowGroup& group : g.groups) group.live = (group.live + experts) % (ranks * experts);
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [](Gemm& g) {
        g.groups.front().live = -1;
        return true;
      });
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        RowGroup& group = g.groups.front();
        ++group.a_row, ++group.row, --group.rows;
        return true;
      });
    }
}

TEST(WrongSlicedSlots, ReadBeforeTheyAreThere) {
  std::map<std::string_view, int> edited;  // plans, by what was edited
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      for (const std::string_view name : {"placed", "assigned", "arrived", "weights"}) {
        const bool gates = name == "weights" && slots(op).traits().before;  // passes await them
        edited[name] += expect_refused_where<Await>(plan, "", [&](Await& await) {
          if (gates || !is(plan, await.counter, name)) return false;
          --await.target;
          return true;
        });
      }
      // Where tokens go is known with the tokens, or with the weights.
      edited["messages"] += expect_refused_where<Exchange>(plan, "", [&](Exchange& exchange) {
        const auto sent = std::ranges::find_if(
            exchange.sends, [&](const Exchange::Message& one) { return is(plan, one.slice, "live"); });
        if (sent == exchange.sends.end()) return false;
        to_next_part(sent->slice, 1);
        return true;
      });
      edited["passes"] += expect_refused_where<Elementwise>(plan, "", [&](Elementwise& pass) {
        for (const std::string_view name : {"live", "row_of", "slot_of"})
          if (is(plan, pass.to.slice, name)) {
            to_next_part(pass.to.slice, pass.to.slice.rows);
            return true;
          }
        return false;
      });
      edited["collectives"] += expect_refused_where<Collective>(plan, "", [&](Collective& collective) {
        if (!is(plan, collective.send, "row_of") && !is(plan, collective.send, "slot_of")) return false;
        to_next_part(collective.send, collective.send.rows);
        return true;
      });
    }
  EXPECT_EQ(edited.size(), 7u);
  for (const auto& [what, count] : edited) EXPECT_GT(count, 0) << what;
}

TEST(WrongSlicedSlots, AssignedElsewhere) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<AssignSlots>(plan, "", [](AssignSlots& assign) {
        to_next_part(assign.counts, 1);
        return true;
      });
      expect_refused<AssignSlots>(plan, "", [](AssignSlots& assign) {
        to_next_part(assign.row_of, slots_of_rank);
        to_next_part(assign.slot_of, tokens);
        return true;
      });
      expect_refused<AssignSlots>(plan, "well-formed", [](AssignSlots& assign) {
        assign.counts.rows = ranks, assign.counts.row = 0;
        return true;
      });
    }
  for (const Plan& plan : plans(Op::allgather_grouped_gemm))
    expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
      if (!is(plan, pass.to.slice, "counts")) return false;
      --pass.from.front().slice.rows, --pass.to.slice.rows, --pass.grid.rows;
      return true;
    });
}

/// A call may have fewer tokens than the plan. Passes leave out the others, if their rows are all tokens.
TEST(WrongSlicedSlots, RowsThatACallMayNotHave) {
  int exchanges = 0;
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      const auto of_tokens = [&](const Slice& slice) {
        const Role role = plan.buffers[static_cast<std::size_t>(slice.buffer)].role;
        return role == Role::out || role == Role::a || role == Role::topk_weights;
      };
      expect_refused<Elementwise>(plan, "well-formed", [&](Elementwise& pass) {
        Placement& at = of_tokens(pass.to.slice) ? pass.to : pass.from.front();
        if (is_indexed(at) || !of_tokens(at.slice)) return false;
        ++at.slice.row, --at.slice.rows, --pass.grid.rows;
        at.form = placement::Matrix{RowMap::identity(at.slice.rows)};
        return true;
      });
      exchanges += expect_refused_where<Exchange>(plan, "well-formed", [&](Exchange& exchange) {
        for (Exchange::Message& message : exchange.sends)
          if (is(plan, message.slice, "weights")) {
            message.slice = whole(plan, find_buffer(plan, Role::topk_weights), message.slice.rank);
            return true;
          }
        return false;
      });
    }
  EXPECT_GT(exchanges, 0);
}

}  // namespace
}  // namespace shingle::sliced_slots_mutation_test
