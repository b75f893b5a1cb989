// Plans of Ulysses that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"
#include "support/ring_attention.hpp"

namespace shingle::ulysses_mutation_test {
namespace {

using test::ulysses;

/// Changes one step of a kind on rank 0 after the other: each such plan has to fail its proof, and by `rule`
/// where one is given.
template <class S>
void expect_refused(const Plan& right, const std::string& rule, const std::function<bool(S&)>& edit) {
  int changed = 0;
  for (std::size_t l = 0; l < right.ranks[0].lanes.size(); ++l)
    for (std::size_t i = 0; i < right.ranks[0].lanes[l].steps.size(); ++i) {
      Plan plan = right;
      auto* step = std::get_if<S>(&plan.ranks[0].lanes[l].steps[i]);
      if (step == nullptr || !edit(*step)) continue;
      ++changed;
      const Proof proof = verify(plan);
      EXPECT_FALSE(proof.ok) << "lane " << l << ", step " << i << "\n" << to_text(plan);
      if (!rule.empty()) {
        EXPECT_EQ(proof.rule, rule) << proof.failure;
      }
    }
  EXPECT_GT(changed, 0) << "the plan has no such step";
}

Plan ring_plan() {
  const RingParams params{.slices = 4};  // two groups of heads, two pieces of a shard
  return plan_ring(ulysses(3, 24, 12, 6, 4, false, {14, 10}), {}, params).value();
}

TEST(UlyssesWrongPlans, AttentionOfOtherTokensOrHeads) {
  const Plan plan = ring_plan();
  expect_refused<Attend>(plan, "content", [](Attend& a) { return a.first_token > 0 && a.first_token-- > 0; });
  expect_refused<Attend>(plan, "content", [](Attend& a) {
    std::swap(a.keys, a.values);
    return true;
  });
  // Keys and values of the other group of heads.
  expect_refused<Attend>(plan, "", [](Attend& a) {
    const std::int64_t other = 24 - a.keys.row;
    a.keys.row = a.values.row = other;
    return true;
  });
  // Values of other heads than the keys.
  expect_refused<Attend>(plan, "", [](Attend& a) {
    a.values.row = 24 - a.values.row;
    return true;
  });
  // A result on another rank.
  expect_refused<Attend>(plan, "", [](Attend& a) {
    std::get<placement::Matrix>(a.out.form).ranks = {1};
    return true;
  });
  // A result in the columns of other heads.
  expect_refused<Attend>(plan, "", [](Attend& a) {
    if (a.out.slice.buffer != 3) return false;  // only own results go to the output at once
    a.out.slice.col = a.out.slice.col == 0 ? a.out.slice.cols : 0;
    return true;
  });
}

TEST(UlyssesWrongPlans, PackedOrUnpackedWrongly) {
  const Plan plan = ring_plan();
  // The columns of one rank for those of another.
  expect_refused<Elementwise>(plan, "content", [](Elementwise& e) {
    if (!std::holds_alternative<placement::Slots>(e.to.form)) return false;
    for (Loop& loop : e.grid.loops)
      if (loop.axis == Axis::n && loop.extent > 1) loop.rotation = (loop.rotation + 1) % loop.extent;
    return true;
  });
  // K where V belongs.
  expect_refused<Elementwise>(plan, "content", [](Elementwise& e) {
    if (e.from[0].slice.buffer != 1) return false;
    e.from[0].slice.buffer = 2;
    return true;
  });
  // Rows of another piece.
  expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
    if (e.to.slice.row == 0 || !std::holds_alternative<placement::Matrix>(e.to.form)) return false;
    --e.to.slice.row;
    return true;
  });
}

/// Refused without a wait for one of the counters `each`, and without all waits of rank 0 for another. Copies
/// are in order, so what else is awaited may follow from these.
void expect_waits_are_needed(const Plan& plan, std::initializer_list<const char*> each) {
  const auto leave_out = [&](Await& a, std::string_view counter) {
    if (plan.counters[static_cast<std::size_t>(a.counter.counter)].name != counter) return false;
    a.target = 0;
    return true;
  };
  for (const char* const needed : each)
    expect_refused<Await>(plan, "", [&](Await& a) { return leave_out(a, needed); });
  for (const char* const counter : {"kv_arrived", "result_arrived", "begun"}) {
    Plan without = plan;
    for (Lane& lane : without.ranks[0].lanes)
      for (Step& step : lane.steps)
        if (auto* await = std::get_if<Await>(&step)) leave_out(*await, counter);
    EXPECT_FALSE(verify(without).ok) << counter;
  }
}

TEST(UlyssesWrongPlans, MessagesOrWaitsLeftOut) {
  const Plan plan = ring_plan();
  expect_refused<Await>(plan, "", [](Await& a) {
    a.target = 0;
    return true;
  });
  expect_refused<Exchange>(plan, "", [](Exchange& e) {
    if (e.sends.empty() || e.sends[0].slice.row == 0) return false;
    --e.sends[0].slice.row;
    return true;
  });
  expect_refused<Exchange>(plan, "", [](Exchange& e) {
    if (e.receives.empty() || e.receives[0].slice.row == 0) return false;
    --e.receives[0].slice.row;
    return true;
  });
}

TEST(UlyssesWrongPlans, CopiesOrWaitsOfEnginesLeftOut) {
  const RingParams params{.engines = 2, .slices = 4};
  const Plan plan = plan_ring(ulysses(3, 24, 12, 6, 4, false, {14, 10}), {}, params).value();
  expect_waits_are_needed(plan, {"kept", "q_arrived", "computed"});
  // Heads of another rank or group.
  expect_refused<Copy>(plan, "", [](Copy& c) {
    c.from.col = c.from.col == 0 ? c.from.cols : 0;
    return true;
  });
  // Tokens of another rank.
  expect_refused<Copy>(plan, "", [](Copy& c) {
    c.to.row += c.to.row == 0 ? 1 : -1;
    return true;
  });
  // Both lanes attend to keys and values that the first one brings.
  expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
    std::swap(e.from.front().slice.buffer, e.to.slice.buffer);
    return true;
  });
}

TEST(UlyssesWrongPlans, StoresOrWaitsLeftOut) {
  for (const bool unregistered : {false, true}) {
    const RingParams params{.mover = Mover::store, .slices = 4, .unregistered = unregistered};
    const Plan plan = plan_ring(ulysses(3, 24, 12, 6, 4, false, {14, 10}), {}, params).value();
    expect_waits_are_needed(plan, {"kept", "q_arrived"});
    // Heads of another rank or group.
    expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
      Slice& from = e.from.front().slice;
      from.col = from.col == 0 ? from.cols : 0;
      return true;
    });
    // Tokens of another rank, or the memory of another rank.
    expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
      e.to.slice.row += e.to.slice.row == 0 ? 1 : -1;
      return true;
    });
    expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
      e.to.slice.rank = (e.to.slice.rank + 1) % 3;
      return true;
    });
    // Results in the columns of other heads, or in the memory of another rank.
    expect_refused<Attend>(plan, "", [](Attend& a) {
      if (a.out.slice.rank == 0) return false;
      a.out.slice.col = a.out.slice.col == 0 ? a.out.slice.cols : 0;
      return true;
    });
    expect_refused<Attend>(plan, "", [](Attend& a) {
      a.out.slice.rank = (a.out.slice.rank + 1) % 3;
      return true;
    });
  }
}

TEST(UlyssesWrongPlans, TheBaseline) {
  const Plan plan = plan_sequential(ulysses(3, 24, 12, 6, 4), {}).value();
  expect_refused<Collective>(plan, "", [](Collective& c) {
    ++c.send_rows[0], --c.send_rows[1];
    return true;
  });
  expect_refused<Attend>(plan, "content", [](Attend& a) {
    a.q.col += 4;  // from the second head on, and the first of the keys
    return true;
  });
  // A product, though there is none.
  Plan product = plan;
  product.ranks[0].lanes[0].steps[0] = Gemm{};
  EXPECT_EQ(verify(product).rule, "well-formed") << verify(product).failure;
}

}  // namespace
}  // namespace shingle::ulysses_mutation_test
