// Search of params and of the mechanism.
#include "shingle/api/choose.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "shingle/machine/profile.hpp"
#include "shingle/tune/search.hpp"

namespace shingle {
namespace {

using testing::HasSubstr;

Problem problem(Op op = Op::gemm_reducescatter, std::int64_t m = 4096, std::int64_t k = 3584) {
  return {.op = op, .world = 8, .m = m, .n = 8192, .k = k, .dtype = DType::bf16};
}

Machine h200() {
  return machine_from_spec("h200x8");
}

TEST(Tune, NeverWorseThanTheDefaults) {
  for (const PlannerEntry& entry : planners())
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm}) {
      const Machine machine = h200();
      const auto plain = entry.plan(problem(op), machine, {});
      if (!plain) continue;
      const Tuned tuned = tune(problem(op), machine, entry.mechanism, entry.plan).value();
      EXPECT_LE(tuned.us, simulate(*plain, machine).makespan_us) << name(entry.mechanism);
      EXPECT_DOUBLE_EQ(tuned.us, simulate(tuned.plan, machine).makespan_us);
      EXPECT_GT(tuned.tried, 1);
      // A plan holds what was chosen.
      EXPECT_EQ(entry.plan(problem(op), machine, tuned.plan.params).value(), tuned.plan);
    }
}

TEST(Tune, LeavesWhatIsFixed) {
  TuneOptions options;
  options.params.chunks = 3;
  const Tuned tuned = tune(problem(), h200(), Mechanism::chunked, plan_chunked, options).value();
  EXPECT_EQ(tuned.plan.params.chunks, 3);
}

/// Found from messages, whose workers the products lack, although engines want other slices as well.
TEST(Tune, EnginesTakeARingsSlicesWhereRanksReachEachOther) {
  for (const bool reach : {true, false}) {
    Machine machine = h200();
    machine.peer_memory = reach;
    const Tuned tuned = tune(problem(), machine, Mechanism::ring, plan_ring).value();
    EXPECT_EQ(tuned.plan.params.engines, reach ? 1 : 0);
    if (!reach) continue;
    for (const std::int32_t slices : {1, 2, 4}) {
      const Plan plan = plan_ring(problem(), machine, {.slices = slices, .engines = 1}).value();
      EXPECT_LE(tuned.us, simulate(plan, machine).makespan_us);
    }
  }
}

/// The search of groups by the closed form reaches what the simulator finds best of all partitions
/// (FlashOverlap §6.5: more than 99%).
TEST(Tune, GroupsAreThoseOfAnExhaustiveSearch) {
  Machine machine = h200();
  for (const auto& [m, k] : {std::pair{2048, 3584}, {1536, 1024}, {2048, 8192}}) {
    const Problem p = problem(Op::gemm_allreduce, m, k);
    const auto model = wave_model(p, machine);
    ASSERT_TRUE(model);
    const std::int64_t waves = model->waves();
    ASSERT_LE(waves, 8);
    double best = 1e30;
    for (std::int64_t cuts = 0; cuts < std::int64_t{1} << (waves - 1); ++cuts) {
      Params params;
      params.group_waves = {1};
      for (std::int64_t w = 1; w < waves; ++w)
        if (cuts >> (w - 1) & 1)
          params.group_waves.push_back(1);
        else
          ++params.group_waves.back();
      best = std::min(best, simulate(plan_signal(p, machine, params).value(), machine).makespan_us);
    }
    Params params;
    params.group_waves = search(*model).group_waves;
    EXPECT_GE(best / simulate(plan_signal(p, machine, params).value(), machine).makespan_us, 0.99)
        << m << ", " << k;
  }
}

TEST(Choose, NeverSlowerThanSequential) {
  for (const std::int64_t m : {16, 256, 4096})
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm}) {
      const Chosen chosen = choose(problem(op, m), h200()).value();
      EXPECT_LE(chosen.us, chosen.sequential_us);
      EXPECT_EQ(chosen.considered.size(), planners().size());
      EXPECT_FALSE(chosen.reason.empty());
      EXPECT_TRUE(chosen.plan.mechanism == Mechanism::sequential || chosen.us < 0.95 * chosen.sequential_us);
    }
}

TEST(Choose, AGainWithinTheMarginIsNone) {
  const Chosen chosen = choose(problem(), h200(), {.margin = 0.99}).value();
  EXPECT_EQ(chosen.plan.mechanism, Mechanism::sequential);
  EXPECT_THAT(chosen.reason, HasSubstr("within the 99.0%"));
  const Chosen only = choose(problem(), h200(), {.mechanisms = {Mechanism::chunked}}).value();
  EXPECT_EQ(only.considered.size(), 2u);
}

TEST(Choose, MeasuringDecides) {
  // What is predicted to be slowest is measured to be fastest.
  const auto measure = [](const Plan& plan) { return plan.mechanism == Mechanism::sequential ? 1.0 : 2.0; };
  const Chosen chosen = choose(problem(), h200(), {.measure = measure}).value();
  EXPECT_EQ(chosen.plan.mechanism, Mechanism::sequential);
  EXPECT_TRUE(chosen.confirmed);
  EXPECT_THAT(chosen.reason, HasSubstr("measured"));
}

/// A prediction that is wrong about a param draws the search to it: the planner's own are measured as well.
TEST(Choose, ParamsThatWereFoundAreMeasuredBesideThePlanners) {
  const Machine machine = h200();
  const Problem few = problem(Op::gemm_reducescatter, 2048, 1024);
  const Params own = plan_fused(few, machine, {})->params;
  ASSERT_NE(tune(few, machine, Mechanism::fused, plan_fused)->plan.params, own);
  const auto measure = [&](const Plan& plan) {
    return plan.mechanism == Mechanism::fused && plan.params == own ? 1.0 : 2.0;
  };
  const Chosen chosen = choose(few, machine, {.mechanisms = {Mechanism::fused}, .measure = measure}).value();
  EXPECT_EQ(chosen.plan.mechanism, Mechanism::fused);
  EXPECT_EQ(chosen.plan.params, own);
  EXPECT_EQ(chosen.us, 1);
  const Considered& considered =
      *std::ranges::find(chosen.considered, Mechanism::fused, &Considered::mechanism);
  EXPECT_EQ(considered.params, own);
  EXPECT_EQ(considered.measured_us, 1);
}

/// Whatever is predicted, once it was measured.
TEST(Choose, WhatWasMeasuredToBeFastestIsTakenAgain) {
  const auto directory = std::filesystem::temp_directory_path() / "shingle_choose_measured_test";
  std::filesystem::remove_all(directory);
  const Machine machine = h200();
  TuneCache cache(machine, directory);
  const Mechanism predicted = choose(problem(), machine).value().plan.mechanism;
  ASSERT_NE(predicted, Mechanism::chunked);
  const auto measure = [](const Plan& plan) { return plan.mechanism == Mechanism::chunked ? 1.0 : 2.0; };
  const int all = static_cast<int>(planners().size());
  const Chosen first =
      choose(problem(), machine, {.cache = &cache, .measure = measure, .confirmed = all}).value();
  ASSERT_EQ(first.plan.mechanism, Mechanism::chunked);
  const Chosen again = choose(problem(), machine, {.cache = &cache}).value();
  EXPECT_EQ(again.plan, first.plan);
  EXPECT_THAT(again.reason, HasSubstr("measured"));
  std::filesystem::remove_all(directory);
}

/// Neither found nor known params are taken where who is to run their plan cannot.
TEST(Choose, WhatIsRefusedIsNotTaken) {
  const auto directory = std::filesystem::temp_directory_path() / "shingle_choose_refused_test";
  std::filesystem::remove_all(directory);
  const Machine machine = h200();
  TuneCache cache(machine, directory);
  const Mechanism best = choose(problem(), machine, {.cache = &cache}).value().plan.mechanism;
  ASSERT_NE(best, Mechanism::sequential);
  ChooseOptions options;
  options.tune.refuses = [&](const Plan& plan) {
    return std::string(plan.mechanism == best ? "not here" : "");
  };
  for (TuneCache* const known : {static_cast<TuneCache*>(nullptr), &cache}) {
    options.cache = known;
    const Chosen other = choose(problem(), machine, options).value();
    EXPECT_NE(other.plan.mechanism, best);
    for (const Considered& considered : other.considered)
      EXPECT_EQ(considered.reason == "not here", considered.mechanism == best);
  }
  std::filesystem::remove_all(directory);
}

TEST(Choose, WhatIsKnownIsNotSearchedAgain) {
  const auto directory = std::filesystem::temp_directory_path() / "shingle_choose_test";
  std::filesystem::remove_all(directory);
  const Machine machine = h200();
  TuneCache cache(machine, directory);
  const Chosen first = choose(problem(), machine, {.cache = &cache}).value();
  const Chosen second = choose(problem(), machine, {.cache = &cache}).value();
  EXPECT_EQ(first.plan, second.plan);
  for (const Considered& at : second.considered) EXPECT_EQ(at.tried, at.us > 0 ? 1 : 0) << name(at.mechanism);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace shingle
