// The simulator on any plan: it ends, keeps to the order of lanes, and promises no more than the machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "shingle/api/registry.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/sim/metrics.hpp"
#include "support/random_problem.hpp"
#include "support/whole_machine.hpp"

namespace shingle::simulate_test {
namespace {

using namespace test;

void expect_sane(const Plan& plan, const Machine& machine, const Simulated& run) {
  const std::string what = to_text(plan);
  std::map<std::array<std::int32_t, 2>, double> ends;
  double last = 0;
  for (const Span& span : run.spans) {
    ASSERT_LE(span.begin_us, span.end_us) << what;
    ASSERT_GE(span.begin_us, 0) << what;
    last = std::max(last, span.end_us);
    // What is in order begins when what is before it has ended; tiles and commands may overlap each other.
    const Lane& lane =
        plan.ranks[static_cast<std::size_t>(span.rank)].lanes[static_cast<std::size_t>(span.lane)];
    const Step& step = lane.steps[static_cast<std::size_t>(span.step)];
    if (lane.kind == LaneKind::copy) continue;
    double& end = ends[{span.rank, span.lane}];
    if (std::holds_alternative<Collective>(step) || std::holds_alternative<Exchange>(step) ||
        std::holds_alternative<Await>(step)) {
      ASSERT_GE(span.begin_us, end - 1e-6) << what;
    }
    end = std::max(end, span.end_us);
  }
  EXPECT_LE(last, run.makespan_us + 1e-9);
  for (const double us : run.computing_us) EXPECT_LE(us, run.makespan_us + 1e-9);
  for (const auto& lanes : run.busy_us)
    for (const double us : lanes) EXPECT_GE(us, 0);
  // The critical path goes forward in time.
  for (std::size_t i = 1; i < run.critical_path.size(); ++i)
    ASSERT_LE(run.spans[run.critical_path[i - 1]].begin_us, run.spans[run.critical_path[i]].end_us + 1e-9)
        << what;
  EXPECT_GE(machine.workers, 1);
}

TEST(Simulate, EveryPlanEnds) {
  Dice dice(11);
  int simulated = 0;
  for (int i = 0; i < 250; ++i) {
    const Problem problem = random_problem(dice, {.world = 6, .m = 120, .n = 64, .k = 48});
    const Machine machine = whole_machine(dice);
    for (const PlannerEntry& entry : planners()) {
      const auto plan = make_plan(problem, machine, random_params(dice, problem, entry.mechanism));
      if (!plan) continue;
      const SimOptions options{.epochs = static_cast<int>(dice.size(1, 3))};
      const Simulated run = simulate(*plan, machine, options);
      expect_sane(*plan, machine, run);
      EXPECT_EQ(run.makespan_us, simulate(*plan, machine, options).makespan_us);
      ++simulated;
    }
  }
  EXPECT_GT(simulated, 500);
}

/// Nothing hides what the workers have to do, and all of it is done.
TEST(Simulate, ComputationIsNeverLost) {
  Dice dice(12);
  for (int i = 0; i < 150; ++i) {
    const Problem problem = random_problem(dice, {.world = 4, .m = 120, .n = 64, .k = 48});
    // `chunked` leaves products without rows out.
    if (problem.traits().is_collective() || problem.m == 0) continue;
    Machine machine = whole_machine(dice);
    machine.whole_tiles = false;
    machine.tiles = {{16, 16, 0, 0.01}};  // an element costs the same whatever the tile
    machine.workers = 4, machine.collective_workers = 0;
    if (problem.n < machine.workers) continue;  // a library's product gives each worker some of the columns
    for (const PlannerEntry& entry : planners()) {
      const auto plan = make_plan(problem, machine, default_params(entry.mechanism));
      if (!plan) continue;
      const auto metrics = measure(*plan, machine);
      ASSERT_TRUE(metrics);
      EXPECT_GE(metrics->us, metrics->compute_us * (1 - 1e-9)) << to_text(*plan);
      EXPECT_LE(metrics->exposed_us, metrics->us);
    }
  }
}

TEST(Simulate, NoiseComesFromItsSeed) {
  const Problem problem{.op = Op::gemm_reducescatter, .world = 4, .m = 256, .n = 128, .k = 64};
  Dice dice(3);
  Machine machine = whole_machine(dice);
  machine.collective_workers = 0;
  const Plan plan = make_plan(problem, machine, SignalParams{}).value();
  const auto time = [&](double noise, std::uint64_t seed) {
    return simulate(plan, machine, {.noise = noise, .seed = seed}).makespan_us;
  };
  EXPECT_EQ(time(0, 1), time(0, 2));
  EXPECT_EQ(time(0.1, 1), time(0.1, 1));
  EXPECT_NE(time(0.1, 1), time(0.1, 2));
}

}  // namespace
}  // namespace shingle::simulate_test
