// Params of the nearest tuned problem, for sizes that were not tuned.
#include "tune/reuse.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle::tune_reuse_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Problem problem(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.op = Op::gemm_allreduce, .world = 4, .m = m, .n = n, .k = k, .dtype = DType::bf16};
}

TuneEntry entry(const Problem& p, std::vector<std::int64_t> groups = {1, 2, 1}) {
  return {.problem = p, .params = SignalParams{.tile = {16, 16}, .group_waves = std::move(groups)}};
}

TEST(Nearest, IsByLogarithms) {
  const std::vector<TuneEntry> entries{entry(problem(100, 100, 100)), entry(problem(400, 400, 100)),
                                       entry(problem(400, 400, 800))};
  const auto m_of = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const Problem p = nearest(entries, problem(m, n, k), Mechanism::signal)->problem;
    return std::pair{p.m, p.k};
  };
  EXPECT_EQ(m_of(100, 100, 100), (std::pair<std::int64_t, std::int64_t>(100, 100)));
  EXPECT_EQ(m_of(10, 1100, 90), (std::pair<std::int64_t, std::int64_t>(100, 100))) << "M·N, not M";
  EXPECT_EQ(m_of(210, 210, 100), (std::pair<std::int64_t, std::int64_t>(400, 100))) << "factors, not steps";
  EXPECT_EQ(m_of(300, 400, 400), (std::pair<std::int64_t, std::int64_t>(400, 800)));
}

TEST(Nearest, IsOfTheSameKind) {
  const Problem p = problem(100, 100, 100);
  const auto found = [&](Problem other) { return nearest({entry(other)}, p, Mechanism::signal).has_value(); };
  EXPECT_TRUE(found(p));
  EXPECT_FALSE(nearest({entry(p)}, p, Mechanism::fused));
  EXPECT_FALSE(nearest({}, p, Mechanism::signal));
  for (const auto change : std::initializer_list<void (*)(Problem&)>{
           [](Problem& q) { q.op = Op::gemm_reducescatter; }, [](Problem& q) { q.world = 2; },
           [](Problem& q) { q.dtype = DType::f32; }, [](Problem& q) { q.transpose_a = true; },
           [](Problem& q) { q.transpose_b = true; }}) {
    Problem other = p;
    change(other);
    EXPECT_FALSE(found(other));
  }
}

TEST(ScaleGroups, KeepsThePartsOfTheWhole) {
  EXPECT_THAT(scale_groups({1, 2, 1}, 4), ElementsAre(1, 2, 1));
  EXPECT_THAT(scale_groups({1, 2, 1}, 8), ElementsAre(2, 4, 2));
  EXPECT_THAT(scale_groups({2, 4, 2}, 4), ElementsAre(1, 2, 1));
  EXPECT_THAT(scale_groups({1, 30, 1}, 4), ElementsAre(1, 2, 1)) << "no group vanishes";
  EXPECT_THAT(scale_groups({1, 2, 1}, 2), ElementsAre(1, 1));
  EXPECT_THAT(scale_groups({5}, 3), ElementsAre(3));
  EXPECT_THROW(scale_groups({1, 2}, 0), InvalidArgument);
  EXPECT_THROW(scale_groups({1, 0}, 2), InvalidArgument);
  EXPECT_THROW(scale_groups({}, 2), InvalidArgument);
}

TEST(ScaleGroups, AddsUp) {
  for (const std::vector<std::int64_t>& groups :
       {std::vector<std::int64_t>{1, 3, 4, 6, 8, 9, 1}, {12, 1, 1}, {1, 1, 12}, {40}})
    for (std::int64_t waves = 1; waves < 100; ++waves) {
      const auto scaled = scale_groups(groups, waves);
      EXPECT_EQ(std::accumulate(scaled.begin(), scaled.end(), std::int64_t{0}), waves);
      EXPECT_GE(*std::ranges::min_element(scaled), 1);
      EXPECT_EQ(scaled.size(), std::min(groups.size(), static_cast<std::size_t>(waves)));
    }
}

TEST(Reuse, CanBePlanned) {
  Machine machine;
  machine.workers = 4;
  const std::vector<TuneEntry> entries{entry(problem(64, 64, 64)), entry(problem(512, 64, 64), {1, 30, 1})};
  const auto params = reuse(entries, problem(600, 70, 60), machine);
  ASSERT_TRUE(params);
  EXPECT_EQ(params->group_waves.size(), 3u);
  EXPECT_TRUE(plan_signal(problem(600, 70, 60), machine, *params));
  EXPECT_FALSE(reuse({}, problem(600, 70, 60), machine));
  machine.collective_workers = 4;
  EXPECT_FALSE(reuse(entries, problem(600, 70, 60), machine)) << "nobody is left to compute";
}

TEST(Reuse, DefaultGroupsStayDefault) {
  const auto params = reuse({entry(problem(64, 64, 64), {})}, problem(64, 64, 32), {});
  ASSERT_TRUE(params);
  EXPECT_THAT(params->group_waves, IsEmpty());
}

}  // namespace
}  // namespace shingle::tune_reuse_test
