// How an attention is cut into calls of cuDNN.
#include "lower/attention_parts.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "shingle/planner/planner.hpp"
#include "support/ring_attention.hpp"

namespace shingle::attention_parts_test {
namespace {

using test::AttentionDraw;

std::vector<AttentionPart> parts(const Attention& attention, const TokenRange& queries,
                                 const TokenRange& keys) {
  return attention_parts(test::ring_attention(1, 100, attention), queries, keys);
}

/// Adds one for each query and key of a part that see each other: by row of the queries, then of the keys.
void count_pairs(const AttentionPart& part, std::vector<std::vector<int>>& pairs) {
  for (std::int64_t s = 0; s < part.sequences; ++s)
    for (std::int64_t i = 0; i < part.queries; ++i) {
      const std::int64_t seen = part.causal ? part.keys - part.queries + i + 1 : part.keys;
      for (std::int64_t j = 0; j < seen; ++j)
        ++pairs[static_cast<std::size_t>(part.row + s * part.queries + i)]
               [static_cast<std::size_t>(part.key + s * part.keys + j)];
    }
}

TEST(AttentionParts, CountEachPairOnce) {
  AttentionDraw draw(37);
  for (int round = 0; round < 2000; ++round) {
    const Problem p = draw.problem(Op::allgather_attention, 1, 4, 12);
    const std::int64_t key = draw(0, p.m - 1);
    const TokenRange keys{key, draw(key + 1, p.m)}, seeing = p.seeing(keys);
    const std::int64_t query = draw(seeing.first, seeing.end - 1);
    const TokenRange queries{query, draw(query + 1, seeing.end)};
    std::vector<std::vector<int>> pairs(static_cast<std::size_t>(queries.count()),
                                        std::vector<int>(static_cast<std::size_t>(keys.count())));
    for (const AttentionPart& part : attention_parts(p, queries, keys)) {
      EXPECT_GE(part.keys, part.causal ? part.queries : 1);
      count_pairs(part, pairs);
    }
    for (std::int64_t i = 0; i < queries.count(); ++i)
      for (std::int64_t j = 0; j < keys.count(); ++j) {
        const TokenRange seen = p.seen_by(queries.first + i, 1), token{keys.first + j, keys.first + j + 1};
        ASSERT_EQ(pairs[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)],
                  common(seen, token) == token)
            << describe(p) << ", query " << queries.first + i << " and key " << keys.first + j;
      }
  }
}

TEST(AttentionParts, JoinWholeSequencesOfOneLength) {
  const Attention attention{2, 1, 8, true, {20, 20, 10, 50}};
  EXPECT_EQ(parts(attention, {0, 100}, {0, 100}),
            (std::vector<AttentionPart>{
                {0, 0, 20, 20, true, 2}, {40, 40, 10, 10, true, 1}, {50, 50, 50, 50, true, 1}}));
}

TEST(AttentionParts, HaveTheQueriesBehindTheLastKeyApart) {
  const std::vector<AttentionPart> both = parts({2, 1, 8, true}, {30, 70}, {20, 50});
  EXPECT_EQ(both, (std::vector<AttentionPart>{{0, 0, 20, 30, true, 1}, {20, 0, 20, 30, false, 1}}));
  EXPECT_TRUE(share_keys(both));
  EXPECT_FALSE(share_keys(parts({2, 1, 8, true}, {49, 70}, {20, 50}))) << "the last key's own query sees all";
  EXPECT_FALSE(share_keys(parts({2, 1, 8}, {30, 70}, {20, 50})));
}

/// So no two calls add to the same gradients of K and V.
TEST(AttentionParts, OfBackwardStepsShareNoKeys) {
  AttentionDraw draw(41);
  for (int round = 0; round < 100; ++round) {
    const Problem p = draw.problem(Op::attention_backward, static_cast<int>(draw(1, 8)), 5, 40);
    const RingParams ring{.slices = static_cast<std::int32_t>(draw(0, 5))};
    for (const Plan& plan : {plan_sequential(p, {}).value(), plan_ring(p, {}, ring).value()})
      for (const RankPlan& rank : plan.ranks)
        for (const Lane& lane : rank.lanes)
          for (const Step& step : lane.steps)
            if (const auto* const a = std::get_if<AttendBackward>(&step); a != nullptr && a->grid.rows > 0) {
              EXPECT_FALSE(share_keys(attention_parts(p, {a->first_token, a->first_token + a->grid.rows},
                                                      {a->first_key, a->first_key + a->keys.rows})))
                  << describe(p);
            }
  }
}

TEST(AttentionParts, ComeInBatchesOfAboutOneSize) {
  const AttentionPart part{.queries = 10, .keys = 20, .sequences = 7};
  EXPECT_EQ(attention_batch(part, 5, 2, 1 << 20), (AttentionBatch{7, 5}));
  EXPECT_EQ(attention_batch(part, 5, 2, 8000), (AttentionBatch{4, 5})) << "of 4 sequences at most, 4 and 3";
  EXPECT_EQ(attention_batch(part, 5, 2, 1999), (AttentionBatch{1, 3})) << "of 4 heads at most, 3 and 2";
  EXPECT_EQ(attention_batch(part, 5, 2, 1), (AttentionBatch{1, 1}));
}

}  // namespace
}  // namespace shingle::attention_parts_test
