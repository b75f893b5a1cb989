// Computation and communication that overlap: cuBLASLt products beside NCCL collectives. Every element is
// compared with its definition.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include "cuda/runtime/devices.hpp"
#include "support/overlap_run.hpp"
#include "support/variable.hpp"

namespace shingle::test {
namespace {

class Overlaps : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Overlaps, testing::Values(1, 2, 4, 8), testing::PrintToStringParamName());

TEST_P(Overlaps, RunBesideEachOther) {
  std::string why;
  if (cuda::count_gpus(why) < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed: " << why;
  const auto world = make_world(GetParam(), {.backend = "cuda"});
  expect_overlap_runs(*world, sample_overlap(world->size()));
  Workload large = sample_overlap(world->size());
  for (Workload::Computation& item : large.computations) {
    item.m *= 16, item.n *= 8;
    if (item.kind != ComputationKind::pass) item.k *= 8;
  }
  for (Workload::Collective& item : large.collectives) item.bytes *= 1000;
  expect_overlap_runs(*world, large);
}

/// Algorithm, protocol and, from NCCL 2.30 on, chunks of each collective, as co-tuning asks for them.
TEST(OverlapsTuned, RunWithSettingsOfTheTunerPlugin) {
  std::string why;
  if (cuda::count_gpus(why) < 2) GTEST_SKIP() << "2 GPUs are needed: " << why;
  const Variable plugin("NCCL_TUNER_PLUGIN", SHINGLE_TEST_NCCL_TUNER);
  const auto world = make_world(2, {.backend = "cuda"});
  EXPECT_TRUE(world->capabilities().algorithms);
  Workload workload = sample_overlap(2);
  for (Workload::Collective& item : workload.collectives) item.bytes *= 1000;
  for (const auto& [algorithm, protocol] : {std::pair{Algorithm::ring, Protocol::simple},
                                            {Algorithm::ring, Protocol::ll128},
                                            {Algorithm::ring, Protocol::ll}}) {
    const CollectiveConfig config{
        .channels = 2, .chunk_bytes = 1 << 17, .algorithm = algorithm, .protocol = protocol};
    expect_overlap_runs(*world, workload, {config, config, config, {.channels = 2}});
  }
  const CollectiveConfig tree{.algorithm = Algorithm::tree, .protocol = Protocol::simple};
  expect_overlap_runs(*world, workload, {{}, {}, tree, {}});
}

}  // namespace
}  // namespace shingle::test

#else

TEST(Overlaps, RunBesideEachOther) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}

#endif
