// Computation and communication that overlap: cuBLASLt products beside NCCL collectives. Every element is
// compared with its definition.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include "cuda/runtime/devices.hpp"
#include "support/overlap_run.hpp"

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
  for (Workload::Computation& item : large.computations) item.m *= 16, item.n *= 8, item.k *= 8;
  for (Workload::Collective& item : large.collectives) item.bytes *= 1000;
  expect_overlap_runs(*world, large);
}

}  // namespace
}  // namespace shingle::test

#else

TEST(Overlaps, RunBesideEachOther) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}

#endif
