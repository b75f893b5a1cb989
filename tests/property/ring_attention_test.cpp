// Ring attention, whatever its heads, sequences, ranks, order of tokens and slices: plans are proven and
// results right; plans that are wrong in one place are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "api/workspace.hpp"
#include "report/trace.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"

namespace shingle::ring_attention_test {
namespace {

constexpr RowOrder contiguous = RowOrder::contiguous, zigzag = RowOrder::zigzag;

Problem ring_attention(int world, std::int64_t tokens, Attention attention, RowOrder order = contiguous) {
  Problem p;
  p.op = Op::allgather_attention;
  p.world = world;
  p.m = tokens;
  p.n = p.k = attention.heads * attention.head_dim;
  p.attention = std::move(attention);
  p.row_order = order;
  return p;
}

std::vector<Params> forms() {
  std::vector<Params> forms{SequentialParams{}};
  for (const int slices : {0, 2, 5}) forms.push_back(RingParams{.slices = slices});
  forms.push_back(RingParams{.engines = 1});
  forms.push_back(RingParams{.engines = 3, .slices = 3});
  return forms;
}

void expect_right(const Problem& problem) {
  const auto world = make_world(problem.world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(problem, 7);
  for (const Params& params : forms()) {
    Operator op(*world, problem, {.params = params});
    const Proof proof = verify(op.plan());
    ASSERT_TRUE(proof.ok) << proof.rule << ": " << proof.failure << "\n" << to_text(op.plan());
    EXPECT_EQ(plan_from_json(to_json(op.plan())), op.plan());
    Workspace memory(*world, *inputs);
    memory.bind(op);
    memory.poison_outputs();
    op.executable().poison();
    op.run(2);
    const Check result = check(*inputs, memory.outputs());
    EXPECT_TRUE(result.passed) << describe(problem) << ", " << name(mechanism_of(params)) << ": "
                               << result.max_error << " above " << result.tolerance << " at " << result.worst;
  }
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  std::int64_t operator()(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  /// Heads that the world need not divide, and up to `most` sequences of up to `longest` tokens.
  Problem problem(int world, std::int64_t most, std::int64_t longest) {
    Attention attention;
    attention.kv_heads = (*this)(1, 3);
    attention.heads = attention.kv_heads * (*this)(1, 3);
    attention.head_dim = 4 * (*this)(1, 3);
    attention.causal = (*this)(0, 2) > 0;
    std::int64_t tokens = 0;
    for (std::int64_t i = (*this)(1, most); i > 0; --i)
      tokens += attention.lengths.emplace_back((*this)(1, longest));
    if (attention.lengths.size() == 1) attention.lengths.clear();
    return ring_attention(world, tokens, std::move(attention), (*this)(0, 1) == 1 ? zigzag : contiguous);
  }

 private:
  std::mt19937 random_;
};

TEST(RingAttention, IsRightForAnyHeadsSequencesAndRanks) {
  Draw draw(13);
  for (int world = 1; world <= 8; ++world)
    for (int i = 0; i < 2; ++i) {
      Problem problem = draw.problem(world, 4, 60);
      if (draw(0, 2) == 0) problem.dtype = DType::bf16;
      expect_right(problem);
    }
}

TEST(RingAttention, SpansSeveralBlocksOfQueriesAndKeys) {
  expect_right(ring_attention(2, 701, {6, 3, 16, true}, zigzag));
  expect_right(ring_attention(3, 600, {2, 1, 8}));
  expect_right(ring_attention(6, 500, {2, 2, 8, true}));
}

TEST(RingAttention, HasFewerTokensThanRanks) {
  for (const RowOrder order : {contiguous, zigzag}) {
    expect_right(ring_attention(4, 3, {3, 3, 8, true}, order));
    expect_right(ring_attention(5, 1, {5, 5, 4}, order));
    expect_right(ring_attention(4, 9, {1, 1, 4}, order));
    expect_right(ring_attention(3, 7, {2, 1, 4, true}, order));
  }
}

TEST(RingAttention, IsProvenForAnyRaggedShards) {
  Draw draw(17);
  for (int i = 0; i < 200; ++i) {
    const Problem problem = draw.problem(static_cast<int>(draw(1, 9)), 5, 17);
    const RingParams ring{.slices = static_cast<std::int32_t>(draw(0, 5))};
    const RingParams engines{.engines = static_cast<std::int32_t>(draw(1, 4)),
                             .slices = static_cast<std::int32_t>(draw(0, 5))};
    for (const Plan& plan : {plan_sequential(problem, {}).value(), plan_ring(problem, {}, ring).value(),
                             plan_ring(problem, {}, engines).value()}) {
      const Proof proof = verify(plan);
      ASSERT_TRUE(proof.ok) << describe(problem) << "\n"
                            << proof.rule << ": " << proof.failure << "\n"
                            << to_text(plan);
      const Proof composed = verify(plan, Setting::context);
      ASSERT_TRUE(composed.ok) << describe(problem) << "\n" << composed.rule << ": " << composed.failure;
      EXPECT_EQ(plan_with(problem, {}, params_of(plan)).value(), plan);
      EXPECT_EQ(plan_from_json(to_json(plan)), plan);
    }
  }
}

TEST(RingAttention, IsProvenInWorkThatGrowsWithItsTokensAndNotWithTheirSquare) {
  for (const RowOrder order : {contiguous, zigzag})
    for (const Params& params : forms()) {
      const auto accesses = [&](std::int64_t tokens) {
        const auto plan = make_plan(ring_attention(2, tokens, {4, 4, 1, true}, order), Machine{}, params);
        const Proof proof = verify(*plan);
        EXPECT_TRUE(proof) << proof.failure;
        return static_cast<double>(proof.accesses);
      };
      EXPECT_LT(accesses(8192) / accesses(4096), 2.1) << name(mechanism_of(params));
    }
}

/// Elements that the lanes of a rank send.
std::int64_t sent_by(const RankPlan& rank) {
  std::int64_t sent = 0;
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps) {
      if (const auto* copy = std::get_if<Copy>(&step)) sent += copy->from.rows * copy->from.cols;
      if (const auto* exchange = std::get_if<Exchange>(&step))
        for (const auto& message : exchange->sends) sent += message.slice.rows * message.slice.cols;
    }
  return sent;
}

/// Scores that a rank has to compute.
std::int64_t scores_of(const Problem& problem, const RankPlan& rank) {
  std::int64_t scores = 0;
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps)
      if (const auto* attend = std::get_if<Attend>(&step))
        for (std::int64_t query = 0; query < attend->grid.rows; ++query)
          scores += common(problem.seen_by(attend->first_token + query, 1),
                           {attend->first_key, attend->first_key + attend->keys.rows})
                        .count();
  return scores;
}

TEST(RingAttention, SendsOnlyKeysThatAreSeen) {
  constexpr int world = 4;
  constexpr std::int64_t shard = 8, tokens = world * shard, cols = 2 * 2 * 4;  // K and V, two heads of 4
  for (const RingParams& params : {RingParams{}, RingParams{.engines = 2, .slices = 2}}) {
    const auto sent = [&](Attention attention, RowOrder order) {
      const Plan plan =
          plan_ring(ring_attention(world, tokens, std::move(attention), order), {}, params).value();
      std::vector<std::int64_t> rows;
      for (const RankPlan& rank : plan.ranks) rows.push_back(sent_by(rank) / cols);
      return rows;
    };
    EXPECT_THAT(sent({6, 2, 4}, contiguous), testing::Each((world - 1) * shard));
    EXPECT_THAT(sent({6, 2, 4, true}, contiguous), testing::ElementsAre(24, 16, 8, 0));
    // The first chunk to all ranks; the second to those in front.
    EXPECT_THAT(sent({6, 2, 4, true}, zigzag), testing::ElementsAre(12, 16, 20, 24));
    // A sequence of each rank.
    EXPECT_THAT(sent({6, 2, 4, true, {8, 8, 8, 8}}, contiguous), testing::Each(0));
  }
}

TEST(RingAttention, HasEqualCausalWorkInAZigzag) {
  for (int world = 1; world <= 8; ++world) {
    const Problem problem = ring_attention(world, 6 * world, {1, 1, 4, true}, zigzag);
    const Plan plan = plan_ring(problem, {}, {}).value();
    for (const RankPlan& rank : plan.ranks)
      EXPECT_EQ(scores_of(problem, rank), scores_of(problem, plan.ranks[0])) << world;
  }
}

TEST(RingAttention, MemoryOfPartsDoesNotGrowWithTheWorld) {
  const auto rows = [](int world, const RingParams& params) {
    const Plan plan =
        plan_ring(ring_attention(world, 8 * world, {1, 1, 4, true}, zigzag), {}, params).value();
    std::int64_t most = 0;
    for (const Buffer& buffer : plan.buffers)
      if (buffer.role == Role::internal) most += std::ranges::max(buffer.rows);
    return most;
  };
  for (const RingParams& params : {RingParams{}, RingParams{.engines = 1}})
    EXPECT_EQ(rows(8, params), rows(32, params));
}

TEST(RingAttention, RefusesWhatDoesNotFit) {
  const auto says = [](const std::function<void(Problem&)>& edit, const char* text) {
    Problem problem = ring_attention(2, 32, {4, 2, 8});
    edit(problem);
    try {
      problem.validate();
      ADD_FAILURE() << "accepted: " << describe(problem);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  };
  says([](Problem& p) { p.attention.heads = 5; }, "multiple of kv_heads");
  says([](Problem& p) { p.k = 16; }, "k = 16");
  says([](Problem& p) { p.n = 16; }, "n = 16");
  says([](Problem& p) { p.attention.lengths = {16, 17}; }, "33 tokens");
  says([](Problem& p) { p.epilogue.bias = true; }, "takes no transposes, epilogue or norm");
  says([](Problem& p) { p.row_order = RowOrder::block_cyclic, p.row_block = 4; }, "block-cyclic");
  says([](Problem& p) { p.op = Op::ulysses_attention, p.row_order = zigzag; }, "takes no zigzag");
  says([](Problem& p) { p.row_order = zigzag, p.row_block = 4; }, "row_block = 4");
}

TEST(RingAttention, HasReasonsWhereItHasNoPlan) {
  const Problem problem = ring_attention(2, 32, {4, 2, 8});
  for (const Mechanism mechanism : {Mechanism::chunked, Mechanism::signal, Mechanism::fused,
                                    Mechanism::copy_engine, Mechanism::low_latency}) {
    const auto plan = plan_with(problem, {}, default_params(mechanism));
    ASSERT_FALSE(plan.has_value());
    EXPECT_THAT(plan.reason(), testing::HasSubstr("ring")) << name(mechanism);
  }
}

// ------------------------------------------------------------------------------------------------ wrong
// plans

/// Changes one step of a kind on a rank after the other: each such plan has to fail its proof, alone or in a
/// context, and by `rule` where one is given.
template <class S>
void expect_refused(const Plan& right, const std::string& rule, const std::function<bool(S&)>& edit) {
  int changed = 0;
  for (std::size_t r = 0; r < right.ranks.size(); ++r)
    for (std::size_t l = 0; l < right.ranks[r].lanes.size(); ++l)
      for (std::size_t i = 0; i < right.ranks[r].lanes[l].steps.size(); ++i) {
        Plan plan = right;
        auto* step = std::get_if<S>(&plan.ranks[r].lanes[l].steps[i]);
        if (step == nullptr || !edit(*step)) continue;
        ++changed;
        Proof proof = verify(plan);
        if (proof.ok) proof = verify(plan, Setting::context);
        EXPECT_FALSE(proof.ok) << "rank " << r << ", lane " << l << ", step " << i << "\n" << to_text(plan);
        if (!rule.empty()) {
          EXPECT_EQ(proof.rule, rule) << proof.failure;
        }
      }
  EXPECT_GT(changed, 0) << "the plan has no such step";
}

/// A plan whose parts are merged more than once.
Plan merging_plan(const RingParams& params = {}) {
  return plan_ring(ring_attention(6, 48, {4, 2, 4}), {}, params).value();
}

TEST(RingAttentionWrongPlans, AttentionOfOtherTokensOrHeads) {
  for (const Plan& plan : {merging_plan(), merging_plan({.engines = 1, .slices = 2})}) {
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

TEST(RingAttentionWrongPlans, CopiesOrWaitsOfEnginesLeftOut) {
  const Plan plan = merging_plan({.engines = 1});
  for (const char* const counter : {"arrived", "freed", "begun"})
    expect_refused<Await>(plan, "", [&](Await& a) {
      // An engine that has waited for room knows that its peer has begun.
      if (plan.counters[static_cast<std::size_t>(a.counter.counter)].name != counter) return false;
      if (std::string_view(counter) == "begun" && a.counter.entry != (a.counter.rank + 1) % 6) return false;
      a.target = 0;
      return true;
    });
  expect_refused<Copy>(plan, "", [](Copy& c) {
    c.to.row = c.to.row == 0 ? 8 : 0;
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

// ------------------------------------------------------------------------------------------------ times

/// In unit costs, messages that take half as long as the attention beside them are not waited for.
TEST(RingAttention, WaitsForNothingWhereMessagesAreShorterThanAttention) {
  for (int world = 2; world <= 8; ++world)
    for (const RowOrder order : {contiguous, zigzag}) {
      const Problem problem = ring_attention(world, 8 * world, {2, 2, 4, order == zigzag}, order);
      const Plan plan = plan_ring(problem, {}, {}).value();
      // An element of the result costs `attend_us` against all keys: world turns of as long.
      const double elements = 8.0 * 8, turn = 1.0 / world;
      const UnitCosts costs{.product_us = 0, .pass_us = 0, .transfer_us = turn / 8, .attend_us = 1};
      const Timeline timeline = schematic(plan, costs);
      double end = 0;
      for (const Span& span : timeline.spans) end = std::max(end, span.end_us);
      // The two chunks of the last rank are one, half of which is masked.
      EXPECT_LE(end, elements * (order == zigzag ? 0.5 + 0.5 * turn : 1) + 1e-6) << world;
    }
}

}  // namespace
}  // namespace shingle::ring_attention_test
