// Runs many epochs back to back with random delays in every lane of every rank, and new inputs each time. No
// element may be wrong. SHINGLE_GPU_STRESS is the number of epochs (300), SHINGLE_GPU_DELAY_US the longest
// delay (80).
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cstdlib>

#include "asynchronous.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda::test {
namespace {

constexpr int batch = 20;  // epochs whose results are kept together
constexpr int sets = 3;    // sets of inputs, so that an element of an earlier epoch is wrong

int number(const char* variable, int unless_set) {
  const char* const set = std::getenv(variable);
  return set != nullptr ? std::atoi(set) : unless_set;
}

/// Delays every other step, for a time that differs between epochs, also in graphs.
void hold_up(const CudaStepEvent& at) {
  static const auto most_ns =
      static_cast<std::uint64_t>(1000) * static_cast<std::uint64_t>(number("SHINGLE_GPU_DELAY_US", 80));
  const auto salt = static_cast<std::uint32_t>(at.rank * 7919 + at.lane * 131 + at.step);
  if (salt % 2 == 0 || most_ns == 0) return;
  check(launch_delay(at.epoch, salt, most_ns, static_cast<cudaStream_t>(at.stream)), "launch_delay");
}

class Stress : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Stress, testing::Values(1, 2, 4, 8), testing::PrintToStringParamName());

TEST_P(Stress, NoElementIsWrongWhoeverIsLate) {
  if (gpus() < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed, there are " << gpus();
  const auto world = make_cuda_world(GetParam(), {.on_step = hold_up});
  const int epochs = number("SHINGLE_GPU_STRESS", 300);
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm}) {
    const Problem problem = small_problem(op, GetParam());
    for (const Params& params : ways(*world)) {
      if (!make_plan(problem, world->machine(), params)) continue;
      SCOPED_TRACE(describe(problem) + " by " + describe(params));
      Operator operation(*world, problem, {.params = params, .timeout_us = 20e6});
      Matrices matrices(*world, problem, sets);
      matrices.reserve(batch + sets);
      matrices.bind(operation);
      operation.prepare();
      const Streams streams(*world);
      const auto epoch = [&](int keep_as, int set) {
        streams.each([&](int rank, cudaStream_t stream) { matrices.bring(rank, set, stream); });
        operation.enqueue(streams.handles());
        streams.each([&](int rank, cudaStream_t stream) { matrices.keep(rank, keep_as, stream); });
      };
      const auto finish = [&] {
        operation.synchronize();
        return streams.wait();
      };
      // The oracle checks the first epoch of each set. Later epochs must give the same bits.
      for (int set = 0; set < sets; ++set) epoch(batch + set, set);
      ASSERT_TRUE(finish());
      for (int set = 0; set < sets; ++set) ASSERT_TRUE(matrices.right(batch + set, set));
      for (int done = 0; done < epochs; done += batch) {
        for (int i = 0; i < batch; ++i) epoch(i, (done + i) % sets);
        ASSERT_TRUE(finish());
        for (const int rank : world->local_ranks())
          for (int i = 0; i < batch; ++i)
            ASSERT_TRUE(matrices.same(rank, i, batch + (done + i) % sets))
                << "rank " << rank << ", epoch " << done + i;
      }
      std::printf("%s by %s: %d epochs\n", describe(problem).c_str(), describe(params).c_str(),
                  (epochs + batch - 1) / batch * batch);
    }
  }
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Stress, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
