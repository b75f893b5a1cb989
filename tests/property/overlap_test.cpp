// Random overlaps: planned alike each time, proven, read back, simulated no slower beside each other than in
// sequence, and run.
#include <gtest/gtest.h>

#include "shingle/plan/json.hpp"
#include "shingle/sim/simulate.hpp"
#include "shingle/verify/verify.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/overlap_run.hpp"
#include "support/random_problem.hpp"

namespace shingle::test::overlap_test {
namespace {

bool grouped(Dice& dice, ComputationKind kind) {
  return kind == ComputationKind::product && chance(dice, 50);
}

/// Whoever comes later in one drawn order may await what came before.
Workload random_overlap(Dice& dice) {
  Workload list;
  std::int64_t computations = dice.size(1, 6), collectives = dice.size(1, 5);
  const auto some_of = [&](std::size_t count) {
    std::vector<std::int32_t> after;
    for (std::size_t i = 0; i < count; ++i)
      if (chance(dice, 40)) after.push_back(static_cast<std::int32_t>(i));
    return after;
  };
  while (computations + collectives > 0) {
    if (dice.size(1, computations + collectives) <= computations) {
      --computations;
      const auto kind = static_cast<ComputationKind>(dice.size(0, computation_kinds - 1));
      list.computations.push_back({std::string(name(kind)), dice.size(1, 70), dice.size(1, 50),
                                   kind == ComputationKind::pass ? 1 : dice.size(1, 40),
                                   some_of(list.collectives.size()), kind});
      Workload::Computation& item = list.computations.back();
      for (std::int64_t left = grouped(dice, kind) ? item.m : 0; left > 0; left -= item.groups.back())
        item.groups.push_back(dice.size(0, left));
    } else {
      --collectives;
      const auto kind = static_cast<CollectiveKind>(dice.size(0, 3));
      list.collectives.push_back({"transfer", kind, dice.size(1, 6000), some_of(list.computations.size())});
    }
  }
  return list;
}

ChunkedParams random_configs(Dice& dice, const Workload& list) {
  ChunkedParams params;
  if (chance(dice, 50)) params.tile = {16, 16};
  if (chance(dice, 30)) return params;
  for (const Workload::Collective& item : list.collectives) {
    CollectiveConfig config{.channels = static_cast<std::int32_t>(dice.size(0, 5)),
                            .chunk_bytes = chance(dice, 50) ? 0 : dice.size(1, 100000),
                            .threads = static_cast<std::int32_t>(32 * dice.size(0, 4)),
                            .algorithm = static_cast<Algorithm>(dice.size(0, 3)),
                            .protocol = static_cast<Protocol>(dice.size(0, 3)),
                            .transport = static_cast<Transport>(dice.size(0, 4)),
                            .spared = static_cast<std::int32_t>(dice.size(0, 5)),
                            .delay = static_cast<std::int32_t>(dice.size(0, 3))};
    if (!serves(item.kind, config)) config.algorithm = {}, config.protocol = {}, config.threads = 0;
    params.configs.push_back(config);
  }
  return params;
}

Machine machine() {
  return overlap_machine(6);
}

TEST(RandomOverlaps, AreProvenAndReadBack) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Dice dice(seed);
    Workload workload = random_overlap(dice);
    workload.world = static_cast<int>(dice.size(1, 5));
    const ChunkedParams beside = random_configs(dice, workload);
    const Params all[] = {beside, SequentialParams{.tile = beside.tile, .configs = beside.configs}};
    for (const Params& params : all) {
      const Plan plan = make_plan(workload, machine(), params).value();
      const Proof proof = verify(plan);
      ASSERT_TRUE(proof.ok) << seed << ": " << proof.rule << ": " << proof.failure << "\n"
                            << lists_to_json(workload);
      EXPECT_EQ(plan_from_json(to_json(plan)), plan) << seed;
      EXPECT_EQ(make_plan(workload, machine(), params_of(plan)).value(), plan) << seed;
    }
  }
}

TEST(RandomOverlaps, AreNoSlowerBesideEachOther) {
  Machine free = machine();  // of contention: without it waiting less cannot cost anything but workers
  free.collective_workers = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Dice dice(seed);
    Workload workload = random_overlap(dice);
    workload.world = static_cast<int>(dice.size(2, 5));
    const auto us = [&](const Params& params) {
      return simulate(make_plan(workload, free, params).value(), free).makespan_us;
    };
    const TileParams tile{.rows = 16};
    EXPECT_LE(us(ChunkedParams{.tile = tile}), us(SequentialParams{.tile = tile}) * (1 + 1e-9)) << seed;
  }
}

TEST(RandomOverlaps, RunOnThreads) {
  for (std::uint64_t seed = 0; seed < 12 && !testing::Test::HasFatalFailure(); ++seed) {
    Dice dice(seed);
    const auto world = make_world(static_cast<int>(dice.size(1, 3)), {.workers_per_rank = 3});
    SCOPED_TRACE(seed);
    Workload workload = random_overlap(dice);
    workload.world = world->size();
    expect_overlap_runs(*world, workload);
    for (std::vector<CollectiveConfig> configs = random_configs(dice, workload).configs; !configs.empty();) {
      for (CollectiveConfig& config : configs) {
        config.channels = std::min(config.channels, 1), config.spared = std::min(config.spared, 1);
        if (chance(dice, 50)) config = {.chunk_bytes = config.chunk_bytes, .transport = Transport::engines};
      }
      expect_overlap_runs(*world, workload, configs);
      break;
    }
  }
}

}  // namespace
}  // namespace shingle::test::overlap_test
