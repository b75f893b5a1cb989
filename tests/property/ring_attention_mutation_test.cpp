// Plans of ring attention that are wrong in one place are refused.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"
#include "support/mutations.hpp"
#include "support/ring_attention.hpp"

namespace shingle::ring_attention_mutation_test {
namespace {

using test::contiguous;
using test::expect_refused;
using test::ring_attention;
using test::zigzag;

/// A plan whose parts are merged more than once.
Plan merging_plan(const RingParams& params = {}) {
  return plan_ring(ring_attention(6, 48, {4, 2, 4}), {}, params).value();
}

TEST(RingAttentionWrongPlans, AttentionOfOtherTokensOrHeads) {
  for (const Plan& plan : {merging_plan(), merging_plan({.engines = 1, .slices = 2}),
                           merging_plan({.mover = Mover::store, .slices = 2})}) {
    expect_refused<Attend>(plan, "content",
                           [](Attend& a) { return a.first_token > 0 && a.first_token-- > 0; });
    expect_refused<Attend>(plan, "content", [](Attend& a) { return a.first_key > 0 && a.first_key-- > 0; });
    expect_refused<Attend>(plan, "content", [](Attend& a) {
      std::swap(a.keys, a.values);
      return true;
    });
    // One key fewer than the others count on.
    expect_refused<Attend>(plan, "content", [](Attend& a) {
      if (a.keys.rows < 2) return false;
      --a.keys.rows, --a.values.rows;
      return true;
    });
    // Without the log-sum-exp, as if there were no other keys.
    expect_refused<Attend>(plan, "well-formed", [](Attend& a) {
      a.lse = {};
      return true;
    });
  }
}

TEST(RingAttentionWrongPlans, QueriesThatSeeNoKey) {
  const Plan plan = plan_ring(ring_attention(3, 24, {4, 2, 4, true}, zigzag), {}, {}).value();
  expect_refused<Attend>(plan, "well-formed", [](Attend& a) {
    if (a.first_key < 2) return false;
    a.first_token = a.first_key - 1;  // the query before all of the keys
    return true;
  });
}

TEST(RingAttentionWrongPlans, PartsMissingTwiceOrWithTheWeightOfOthers) {
  for (const Plan& plan : {merging_plan(), merging_plan({.engines = 2, .slices = 2})}) {
    // A part is missing. Rows of the first one are never without a part.
    expect_refused<Merge>(plan, "content", [](Merge& m) {
      m.parts.pop_back();
      return true;
    });
    expect_refused<Merge>(plan, "content", [](Merge& m) {
      m.parts.erase(m.parts.begin());
      return true;
    });
    expect_refused<Merge>(plan, "content", [](Merge& m) {
      m.parts.push_back(m.parts.front());
      return true;
    });
    // Weights of another part.
    expect_refused<Merge>(plan, "content", [](Merge& m) {
      std::swap(m.parts[0].lse, m.parts[1].lse);
      return true;
    });
    // Rows of a part at other rows of the result.
    expect_refused<Merge>(plan, "content", [](Merge& m) {
      Merge::Part& part = m.parts.back();
      if (part.value.rows < 2) return false;
      --part.value.rows, --part.lse.rows, ++part.value.row, ++part.lse.row;
      return true;
    });
    // A part again where a result is wanted, and the other way round.
    expect_refused<Merge>(plan, "content", [](Merge& m) {
      if (m.lse.buffer < 0) return false;
      m.lse = {};
      return true;
    });
    // Not where the user expects it.
    expect_refused<Merge>(plan, "", [](Merge& m) {
      m.to.slice.row = m.to.slice.row == 0 ? 1 : m.to.slice.row - 1;
      return true;
    });
  }
}

TEST(RingAttentionWrongPlans, WeightsOfAnEarlierStepOrEpoch) {
  const Plan right = merging_plan();
  // The step that stores them comes to store them elsewhere: what is merged is of the epoch before.
  expect_refused<Attend>(right, "content", [&](Attend& a) {
    if (a.lse.buffer < 0) return false;
    a.lse.row = a.lse.row == 0 ? a.lse.rows : 0;
    return true;
  });
  expect_refused<Attend>(right, "content", [&](Attend& a) {
    Slice& out = a.out.slice;
    out.row = out.row == 0 ? out.rows : 0;
    return true;
  });
}

TEST(RingAttentionWrongPlans, ResultsThatAreMergedOverTheirParts) {
  Plan plan = plan_ring(ring_attention(2, 16, {2, 1, 4}), {}, {}).value();
  const auto find = [&]() -> Merge& {
    for (Step& step : plan.ranks[0].lanes[0].steps)
      if (auto* merge = std::get_if<Merge>(&step)) return *merge;
    throw std::logic_error("no merge");
  };
  const Merge right = find();
  // Into the place of a part, then out of it: right, and a copy shows the same.
  Merge into = right;
  into.to.slice = right.parts[0].value;
  Elementwise out;
  out.grid = right.grid;
  out.from.push_back(into.to);
  out.to = right.to;
  find() = into;
  auto& rank = plan.ranks[0];
  rank.lanes[0].steps.emplace_back(out);
  rank.issue.push_back(0);
  EXPECT_TRUE(verify(plan)) << verify(plan).failure;
  // One row further down it would overwrite what it reads.
  Plan wrong = plan;
  std::swap(wrong, plan);
  find().to.slice.row += 1;
  EXPECT_EQ(verify(plan).rule, "well-formed") << verify(plan).failure;
}

/// A problem that wants the log-sum-exp of its result.
Problem with_lse(int world, std::int64_t tokens, bool causal, RowOrder order = contiguous) {
  Attention attention{4, 2, 4, causal};
  attention.returns_lse = true;
  return ring_attention(world, tokens, attention, order);
}

/// True if a step stores the user's log-sum-exp.
bool stores_for_user(const Plan& plan, const Slice& lse) {
  return lse.buffer >= 0 && lse.buffer == find_buffer(plan, Role::out_lse);
}

/// Log-sum-exps of the user's that are not stored, or in the rows or columns of others.
template <class S>
void expect_own_lse(const Plan& plan) {
  expect_refused<S>(plan, "content", [&](S& step) {
    if (!stores_for_user(plan, step.lse)) return false;
    step.lse = {};
    return true;
  });
  expect_refused<S>(plan, "", [&](S& step) {
    if (!stores_for_user(plan, step.lse)) return false;
    step.lse.row = step.lse.row == 0 ? 1 : step.lse.row - 1;
    return true;
  });
  expect_refused<S>(plan, "", [&](S& step) {
    if (!stores_for_user(plan, step.lse)) return false;
    step.lse.col = 1;
    return true;
  });
}

TEST(RingAttentionWrongPlans, LogSumExpsThatAreMissingOrOfOtherRows) {
  for (const RowOrder order : {contiguous, zigzag})
    for (const bool causal : {false, true}) {
      const Problem problem = with_lse(3, 24, causal, order);
      expect_own_lse<Attend>(plan_sequential(problem, {}).value());
      expect_own_lse<Merge>(plan_ring(problem, {}, {}).value());
    }
  expect_own_lse<Merge>(plan_ring(with_lse(6, 48, false), {}, {.engines = 1}).value());
  // Runs of queries that see own keys only: the result of a single step.
  Problem alone = with_lse(3, 24, true);
  alone.attention.lengths = {8, 8, 8};
  expect_own_lse<Attend>(plan_ring(alone, {}, {}).value());
}

TEST(RingAttentionWrongPlans, LogSumExpsOfSomeKeys) {
  const Plan plan = plan_ring(with_lse(6, 48, false), {}, {}).value();
  const std::int32_t user = find_buffer(plan, Role::out_lse);
  const auto for_user = [&](const auto& step) {
    Slice lse = step.lse;
    lse.buffer = user;
    return lse;
  };
  // A part, or the merge of some parts, as if it were complete.
  expect_refused<Attend>(plan, "well-formed", [&](Attend& a) {
    if (a.lse.row != 0) return false;
    a.lse = for_user(a);
    return true;
  });
  expect_refused<Merge>(plan, "content", [&](Merge& m) {
    if (stores_for_user(plan, m.lse)) return false;
    m.lse = for_user(m);
    return true;
  });
  // Of the queries' attention to fewer keys.
  expect_refused<Attend>(plan_sequential(with_lse(3, 24, false), {}).value(), "well-formed", [](Attend& a) {
    --a.keys.rows, --a.values.rows;
    return true;
  });
}

TEST(RingAttentionWrongPlans, CopiesOfALogSumExpOfSomeKeys) {
  Plan plan = plan_ring(with_lse(2, 16, false), {}, {}).value();
  RankPlan& rank = plan.ranks[0];
  ASSERT_TRUE(std::holds_alternative<Merge>(rank.lanes[0].steps.back()));
  Merge& merge = std::get<Merge>(rank.lanes[0].steps.back());
  Elementwise copy;
  copy.grid = make_grid(merge.lse.rows, merge.lse.cols, 64, 64);
  copy.from.push_back({merge.parts[0].lse, placement::Matrix{RowMap::identity(merge.lse.rows)}});
  copy.to = {merge.lse, placement::Matrix{RowMap::identity(merge.lse.rows)}};
  merge.lse = {};
  rank.lanes[0].steps.emplace_back(copy);
  rank.issue.push_back(0);
  const Proof proof = verify(plan);
  EXPECT_EQ(proof.rule, "content") << proof.failure;
  EXPECT_NE(proof.failure.find("leaves out keys of tokens 0 to 16"), std::string::npos) << proof.failure;
}

TEST(RingAttentionWrongPlans, MessagesOrWaitsLeftOut) {
  const Plan plan = merging_plan();
  expect_refused<Await>(plan, "", [](Await& a) {
    a.target = 0;
    return true;
  });
  expect_refused<Exchange>(plan, "", [](Exchange& e) {
    if (e.sends.empty()) return false;
    std::swap(e.sends[0], e.sends[1]);
    return true;
  });
  expect_refused<Exchange>(plan, "", [](Exchange& e) {
    if (e.receives.empty()) return false;
    e.receives[0].slice.row = e.receives[0].slice.row == 0 ? 1 : 0;
    return true;
  });
}

void expect_waits_are_needed(const Plan& plan) {
  for (const char* const counter : {"arrived", "freed", "begun"})
    expect_refused<Await>(plan, "", [&](Await& a) {
      // What has waited for room knows that the peer has begun.
      if (plan.counters[static_cast<std::size_t>(a.counter.counter)].name != counter) return false;
      if (std::string_view(counter) == "begun" && a.counter.entry != (a.counter.rank + 1) % 6) return false;
      a.target = 0;
      return true;
    });
}

TEST(RingAttentionWrongPlans, CopiesOrWaitsOfEnginesLeftOut) {
  const Plan plan = merging_plan({.engines = 1});
  expect_waits_are_needed(plan);
  expect_refused<Copy>(plan, "", [](Copy& c) {
    c.to.row = c.to.row == 0 ? 8 : 0;
    return true;
  });
}

TEST(RingAttentionWrongPlans, StoresOrWaitsLeftOut) {
  const Plan plan = merging_plan({.mover = Mover::store});
  expect_waits_are_needed(plan);
  expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
    e.to.slice.row = e.to.slice.row == 0 ? 8 : 0;
    return true;
  });
}

TEST(RingAttentionWrongPlans, TheBaseline) {
  for (const RowOrder order : {contiguous, zigzag}) {
    const Plan plan = plan_sequential(ring_attention(3, 23, {4, 2, 4}, order), {}).value();
    expect_refused<Attend>(plan, "content", [](Attend& a) {
      std::swap(a.keys, a.values);
      return true;
    });
    expect_refused<Elementwise>(plan, "", [](Elementwise& e) {
      e.to.slice.row = e.to.slice.row == 0 ? 1 : e.to.slice.row - 1;
      return true;
    });
    expect_refused<Await>(plan, "", [](Await& a) {
      a.target = 0;
      return true;
    });
  }
}

}  // namespace
}  // namespace shingle::ring_attention_mutation_test
