// Which variant of copy engines is chosen by size: by the phases of a machine's engines, nearly the one that
// is fastest in the simulator.
#include <gtest/gtest.h>

#include <algorithm>

#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::transfer_time_test {
namespace {

constexpr double kib = 1024;

Problem problem_of(Op op, int world, double bytes) {
  Problem p{.op = op, .world = world, .m = world};
  p.n = p.k = static_cast<std::int64_t>(bytes / world / sizeof(float));
  if (p.traits().routes()) {
    std::vector<std::int32_t> dest;
    for (int rank = 0; rank < world; ++rank) dest.push_back(rank);
    p.routing = std::make_shared<const Routing>(std::vector(static_cast<std::size_t>(world), dest));
  }
  return p;
}

/// Engines whose calls cost, as those of a GPU that a driver serves, and none else: one is as fast as the
/// link.
Machine switched() {
  Machine machine;
  machine.name = "switched";
  machine.link = {400, 1};
  machine.memory_gbps = 4000;
  machine.signal_us = 4;
  machine.engine = {.control_us = 3,
                    .schedule_us = 12,
                    .copy_us = 2,
                    .gbps = 400,
                    .sync_us = 1.5,
                    .queued_us = 1.5,
                    .poll_us = 3,
                    .swap_us = 5};
  return machine;
}

class ChosenVariant : public testing::TestWithParam<Op> {};

/// Over machines, sizes and triggers: in the simulator the choice takes little longer than any other variant.
TEST_P(ChosenVariant, IsNearlyTheFastest) {
  for (const Machine& machine : {machine_from_spec("mi300x8"), switched()})
    for (double bytes = 4 * kib; bytes <= 1024 * 1024 * kib; bytes *= 4)
      for (const bool prelaunch : {false, true})
        for (const EngineTrigger trigger : {EngineTrigger::host, EngineTrigger::direct}) {
          const Problem problem = problem_of(GetParam(), 8, bytes);
          const auto us = [&](CopyVariant variant) {
            const auto plan = plan_copy_engine(
                problem, machine, {.variant = variant, .prelaunch = prelaunch, .trigger = trigger});
            return plan ? simulate(*plan, machine).makespan_us : 1e12;
          };
          double best = 1e12;
          CopyVariant fastest = CopyVariant::automatic;
          for (const CopyVariant variant :
               {CopyVariant::b2b, CopyVariant::bcst, CopyVariant::swap, CopyVariant::pcpy, CopyVariant::ring})
            if (const double one = us(variant); one < best) best = one, fastest = variant;
          EXPECT_LE(us(CopyVariant::automatic), 1.25 * best)
              << machine.name << ", " << bytes / kib << " KiB" << (prelaunch ? ", prelaunched" : "")
              << ", by " << name(trigger) << ": fastest " << name(fastest);
        }
}
INSTANTIATE_TEST_SUITE_P(Ops, ChosenVariant,
                         testing::Values(Op::allgather, Op::alltoall, Op::reducescatter, Op::allreduce),
                         [](const auto& test) { return std::string(name(test.param)); });

/// Where engines of several ranks may meet at the link of another, many bytes go in step.
TEST(ChosenVariant, KeepsStepWhereThatCostsLittle) {
  const auto chosen = [](const Machine& machine, int world, double bytes) {
    const CopyEngineParams params{.prelaunch = true, .trigger = EngineTrigger::direct};
    const Plan plan = plan_copy_engine(problem_of(Op::alltoall, world, bytes), machine, params).value();
    return std::get<CopyEngineParams>(params_of(plan)).variant;
  };
  EXPECT_EQ(chosen(switched(), 8, 1024 * 1024 * kib), CopyVariant::ring);
  EXPECT_NE(chosen(switched(), 8, 1024 * kib), CopyVariant::ring);
  EXPECT_NE(chosen(switched(), 2, 1024 * 1024 * kib), CopyVariant::ring);
  EXPECT_NE(chosen(machine_from_spec("mi300x8"), 8, 1024 * 1024 * kib), CopyVariant::ring);
}

}  // namespace
}  // namespace shingle::transfer_time_test
