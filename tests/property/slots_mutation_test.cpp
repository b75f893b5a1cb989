// Plans that route on the device and are wrong in one place are refused.
#include <gtest/gtest.h>

#include <string_view>

#include "shingle/planner/planner.hpp"
#include "support/mutations.hpp"
#include "support/random_problem.hpp"

namespace shingle::slots_mutation_test {
namespace {

using test::expect_refused;

constexpr Op operators[] = {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe};

/// Three ranks with two experts each, of which a rank's 8 tokens choose two.
Problem slots(Op op) {
  Problem problem{.op = op, .world = 3, .n = 12, .k = 10, .experts = {6, 2, 5}};
  if (problem.traits().chains()) problem.inner = 14;
  return with_m(problem, 8);
}

std::vector<Plan> plans(Op op) {
  Machine machine;
  machine.workers = 4;
  return {plan_sequential(slots(op), machine, {}).value(),
          plan_chunked(slots(op), machine, {.chunks = 2}).value(),
          plan_signal(slots(op), machine, {.group_waves = {1, 1}}).value(),
          plan_fused(slots(op), machine, {}).value(), plan_fused(slots(op), machine, {.helpers = 1}).value()};
}

/// True if an all-to-all takes counts to the ranks, before tokens.
bool sends_counts(const Plan& plan) {
  return plan.mechanism != Mechanism::fused;
}

std::int32_t buffer_of(const Plan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.buffers, name, &Buffer::name);
  return static_cast<std::int32_t>(found - plan.buffers.begin());
}

/// Every index of a pass, changed one after the other.
void expect_index_refused(const Plan& plan, const std::string& rule,
                          const std::function<bool(Elementwise&, Slice&)>& edit) {
  expect_refused<Elementwise>(plan, rule, [&](Elementwise& pass) {
    auto* const picked = std::get_if<placement::Indexed>(&pass.from.front().form);
    return picked != nullptr && edit(pass, picked->index);
  });
}

TEST(WrongSlots, TokensByAnotherIndex) {
  for (const Op op : {Op::alltoall_grouped_gemm, Op::moe})
    for (const Plan& plan : plans(op)) {
      const std::int32_t row_of = buffer_of(plan, "row_of"), slot_of = buffer_of(plan, "slot_of");
      const auto packs = [&](const Slice& index) { return index.buffer == row_of; };
      // The index of another rank, which is not in the step's memory.
      expect_index_refused(plan, "well-formed", [&](Elementwise&, Slice& index) {
        if (!packs(index)) return false;
        index.rank = (index.rank + 1) % 3;
        return true;
      });
      // The first column of the slots of tokens, where the rows fit.
      expect_index_refused(plan, "", [&](Elementwise& pass, Slice& index) {
        if (!packs(index)) return false;
        index = {slot_of, index.rank, 0, std::min<std::int64_t>(pass.grid.rows, 8), 0, 1};
        return true;
      });
      // Slots of other experts; `sequential` has one pass for all.
      expect_index_refused(plan, "", [&](Elementwise& pass, Slice& index) {
        if (!packs(index)) return false;
        if (index.rows < 30)
          index.row = index.row == 0 ? 10 : 0;
        else
          pass.to.slice.row = 5, pass.to.slice.rows -= 5, pass.grid.rows -= 5, index.rows -= 5;
        return true;
      });
      // Only some of the tokens.
      expect_index_refused(plan, "content", [&](Elementwise& pass, Slice& index) {
        if (!packs(index)) return false;
        --pass.from.front().slice.rows;
        return true;
      });
      expect_index_refused(plan, "content", [&](Elementwise& pass, Slice& index) {
        ++pass.from.front().slice.row;
        if (!packs(index)) return false;
        --pass.from.front().slice.rows;
        return true;
      });
    }
}

TEST(WrongSlots, ProductsByAnotherIndex) {
  for (const Op op : {Op::grouped_gemm_alltoall, Op::moe})
    for (const Plan& plan : plans(op)) {
      const std::int32_t slot_of = buffer_of(plan, "slot_of");
      const auto combines = [&](const Slice& index) { return index.buffer == slot_of; };
      expect_index_refused(plan, "content", [&](Elementwise&, Slice& index) {
        if (!combines(index)) return false;
        index.col = 1 - index.col;
        return true;
      });
      expect_index_refused(plan, "content", [&](Elementwise& pass, Slice& index) {
        if (!combines(index)) return false;
        std::swap(pass.from[0], pass.from[1]);
        return true;
      });
      expect_index_refused(plan, "well-formed", [&](Elementwise&, Slice& index) {
        if (!combines(index)) return false;
        index.rank = (index.rank + 1) % 3;
        return true;
      });
      // Products of some slots only, or of another buffer.
      expect_index_refused(plan, "content", [&](Elementwise& pass, Slice& index) {
        if (!combines(index)) return false;
        --pass.from.front().slice.rows;
        return true;
      });
      // A plain sum.
      expect_index_refused(plan, "content", [&](Elementwise& pass, Slice& index) {
        if (!combines(index)) return false;
        pass.factors = {};
        return true;
      });
    }
}

TEST(WrongSlots, CountsOfOthers) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        std::swap(g.groups.front().live, g.groups.back().live);
        return true;
      });
      expect_refused<Gemm>(plan, "content", [](Gemm& g) {
        g.groups.front().live ^= 1;  // the other expert
        return true;
      });
      // The rank's own counts for another rank.
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        for (RowGroup& group : g.groups)
          if (group.live >= 6) group.live = 6 + (group.live - 6 + 2) % 6;
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [](Gemm& g) {
        g.live.rank = (g.live.rank + 1) % 3;
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [](Gemm& g) {
        g.groups.front().live = -1;
        return true;
      });
      expect_refused<Gemm>(plan, "well-formed", [](Gemm& g) {
        g.groups.back().live = 12;
        return true;
      });
      // Rows that are not the first of their group.
      expect_refused<Gemm>(plan, "", [](Gemm& g) {
        RowGroup& group = g.groups.front();
        ++group.a_row, ++group.row, --group.rows;
        return true;
      });
    }
}

/// True if some step awaits the counter.
bool awaits(const Plan& plan, std::int32_t counter) {
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* const await = std::get_if<Await>(&step); await && await->counter.counter == counter)
          return true;
  return false;
}

TEST(WrongSlots, CountsThatHaveNotArrived) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      for (const std::string_view name : {"counted", "assigned", "told"}) {
        const auto counter = static_cast<std::int32_t>(
            std::ranges::find(plan.counters, name, &Counter::name) - plan.counters.begin());
        if (!awaits(plan, counter)) continue;
        expect_refused<Await>(plan, "", [&](Await& await) {
          if (await.counter.counter != counter) return false;
          --await.target;
          return true;
        });
      }
      // Without tokens to push, the lane has awaited all counts.
      if (sends_counts(plan) || op == Op::grouped_gemm_alltoall) continue;
      if (std::get<FusedParams>(params_of(plan)).helpers <= 0) {
        const auto arrived = std::ranges::find(plan.counters, "arrived", &Counter::name);
        expect_refused<Await>(plan, "", [&](Await& await) {
          if (await.counter.counter != arrived - plan.counters.begin()) return false;
          --await.target;
          return true;
        });
        continue;
      }
      int gated = 0;
      expect_refused<Gemm>(plan, "", [&](Gemm& g) {
        if (g.gates.empty()) return false;
        const auto target =
            std::ranges::find_if(g.gates.front().targets, [](std::uint32_t at) { return at > 0; });
        --*target;
        return ++gated > 0;
      });
    }
}

TEST(WrongSlots, CountsForOthers) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      const std::int32_t live = buffer_of(plan, "live");
      if (sends_counts(plan)) {
        expect_refused<Collective>(plan, "", [&](Collective& c) {
          if (c.send.buffer != live) return false;
          std::swap(c.send.row, c.recv.row);
          return true;
        });
        continue;
      }
      expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
        if (pass.from.front().slice.buffer != live || pass.from.front().slice.row != 3) return false;
        pass.from.front().slice.row = 0;  // what others sent, in place of the rank's own
        return true;
      });
      expect_refused<Elementwise>(plan, "", [&](Elementwise& pass) {
        if (pass.to.slice.buffer != live) return false;
        pass.to.slice.row = (pass.to.slice.row + 1) % 3;
        return true;
      });
    }
}

TEST(WrongSlots, ChunksOfOthersOrTooEarly) {
  for (const Op op : operators) {
    const Plan plan = plan_chunked(slots(op), {}, {.chunks = 2}).value();
    // Slots of another rank; slots of the other chunk.
    expect_refused<Exchange>(plan, "", [](Exchange& chunk) {
      if (chunk.sends.size() < 2) return false;
      std::swap(chunk.sends[0].slice, chunk.sends[1].slice);
      return true;
    });
    expect_refused<Exchange>(plan, "", [](Exchange& chunk) {
      for (Exchange::Message& message : chunk.receives) message.slice.row = chunk.receives.front().slice.row;
      return chunk.receives.size() > 1;
    });
    for (const std::string_view name : {"arrived", "computed", "returned"}) {
      const auto counter = static_cast<std::int32_t>(std::ranges::find(plan.counters, name, &Counter::name) -
                                                     plan.counters.begin());
      if (!awaits(plan, counter)) continue;
      expect_refused<Await>(plan, "", [&](Await& await) {
        if (await.counter.counter != counter) return false;
        --await.target;
        return true;
      });
    }
  }
}

TEST(WrongSlots, StepsThatAssignOtherSlots) {
  for (const Op op : operators)
    for (const Plan& plan : plans(op)) {
      expect_refused<AssignSlots>(plan, "well-formed", [](AssignSlots& assign) {
        assign.ids.rank = (assign.ids.rank + 1) % 3;
        return true;
      });
      expect_refused<AssignSlots>(plan, "", [](AssignSlots& assign) {
        assign.counts.row = 0;  // where counts of others arrive
        return true;
      });
      expect_refused<AssignSlots>(plan, "content", [&](AssignSlots& assign) {
        assign.ids = assign.slot_of;
        assign.ids.buffer = buffer_of(plan, "slot_of");
        return true;
      });
    }
}

TEST(WrongSlots, OutputsOfOtherRanksOrCalls) {
  for (const Plan& plan : plans(Op::alltoall_grouped_gemm)) {
    const std::int32_t counts = buffer_of(plan, "counts");
    expect_refused<Elementwise>(plan, "content", [&](Elementwise& pass) {
      if (pass.to.slice.buffer != counts) return false;
      pass.from.front().slice.row = 3;  // the rank's own, by destination
      return true;
    });
  }
  // An index picks rows for weighted sums and moves only, and into another buffer.
  const Plan plan = plan_sequential(slots(Op::moe), {}, {}).value();
  expect_index_refused(plan, "well-formed", [&](Elementwise& pass, Slice&) {
    pass.to.form = pass.from.front().form;
    return true;
  });
  expect_index_refused(plan, "well-formed", [&](Elementwise& pass, Slice& index) {
    index.buffer = pass.to.slice.buffer;
    return true;
  });
}

}  // namespace
}  // namespace shingle::slots_mutation_test
