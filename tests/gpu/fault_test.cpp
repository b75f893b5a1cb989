// One rank fails or is late: all ranks end within the deadline, and the error names the cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <atomic>

#include "asynchronous.hpp"
#include "cuda/runtime/world.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda::test {
namespace {

using testing::HasSubstr;

constexpr double timeout_us = 1e6;
constexpr double bound_s = 20;  // deadlines, and the time to abort communicators
constexpr std::uint64_t late_ns = 4'000'000'000;

enum class Fault { none, throws, late };

class Faults : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (gpus() < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed, there are " << gpus();
  }
  /// A world whose last rank has the fault in `faulty_step`.
  std::unique_ptr<World> make() {
    return make_cuda_world(GetParam(),
                           {.timeout_us = 10e6, .on_step = [this](const CudaStepEvent& at) {
                              if (at.rank != GetParam() - 1 || at.step != faulty_step) return;
                              if (fault == Fault::throws) throw Error("burnt toast", at.rank);
                              if (fault == Fault::late)
                                check(launch_delay(nullptr, 0, late_ns, static_cast<cudaStream_t>(at.stream)),
                                      "launch_delay");
                            }});
  }
  void expect_broken(World& world, Operator& operation) {
    EXPECT_THROW(world.barrier(), Timeout);
    EXPECT_THROW(operation.run(), Timeout);
    EXPECT_THROW(operation.synchronize(), Timeout);
    EXPECT_FALSE(dynamic_cast<CudaWorld&>(world).health().hopeless());
  }
  std::atomic<Fault> fault{Fault::none};
  int faulty_step = 1;
};
INSTANTIATE_TEST_SUITE_P(Worlds, Faults, testing::Values(1, 2, 4), testing::PrintToStringParamName());

/// A launch fails halfway, while epochs of other ranks are on their devices. Traced runs launch each time.
TEST_P(Faults, ARankThatCannotLaunchEndsAll) {
  for (const Mechanism mechanism : {Mechanism::chunked, Mechanism::signal, Mechanism::ring}) {
    const Problem problem = small_problem(Op::gemm_allreduce, GetParam());
    const auto world = make();
    const Params params = small_tiles(mechanism);
    if (!make_plan(problem, world->machine(), params)) continue;
    SCOPED_TRACE(name(mechanism));
    Operator operation(*world, problem, {.params = params, .timeout_us = timeout_us});
    Matrices matrices(*world, problem, 1);
    matrices.bind(operation);
    operation.run();
    fault = Fault::throws;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT([&] { operation.run(3, true); }, testing::ThrowsMessage<Error>(HasSubstr("burnt toast")));
    EXPECT_LT(seconds_since(begin), bound_s);
    expect_broken(*world, operation);
    fault = Fault::none;
  }
}

TEST_P(Faults, ALateRankEndsAllWithTheDiagnosis) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank waits for nobody";
  for (const Mechanism mechanism : {Mechanism::chunked, Mechanism::ring})
    for (const bool asynchronous : {false, true}) {
      SCOPED_TRACE(name(mechanism));
      const Problem problem = small_problem(Op::gemm_allreduce, GetParam());
      fault = Fault::none;
      const auto world = make();
      Operator operation(*world, problem, {.params = small_tiles(mechanism), .timeout_us = timeout_us});
      Matrices matrices(*world, problem, 1);
      matrices.bind(operation);
      fault = Fault::late;  // applies to the graph as well, which is captured now
      const Streams streams(*world);
      const auto begin = std::chrono::steady_clock::now();
      const auto run = [&] {
        if (!asynchronous) return void(operation.run());
        operation.prepare();
        // only one epoch, so that the device is drained after one delay
        operation.enqueue(streams.handles());
        operation.synchronize();
      };
      EXPECT_THROW(run(), Timeout);
      EXPECT_LT(seconds_since(begin), bound_s);
      expect_broken(*world, operation);
    }
}

/// Operators of a world have deadlines of their own, and errors name what an operator itself waited for.
TEST_P(Faults, OperatorsHaveDeadlinesOfTheirOwn) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank waits for nobody";
  const Problem problem = small_problem(Op::gemm_allreduce, GetParam());
  const auto world = make();
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  const Params params = small_tiles(Mechanism::fused);
  faulty_step = 0;
  Operator patient(*world, problem, {.params = params, .timeout_us = 60e6}),
      hasty(*world, problem, {.params = params, .timeout_us = timeout_us});
  Matrices of_patient(*world, problem, 1), of_hasty(*world, problem, 2), others(*world, problem, 3);
  of_patient.bind(patient), of_hasty.bind(hasty);
  fault = Fault::late;  // of the graph, which is captured now
  patient.prepare();
  fault = Fault::none;
  hasty.run();
  const Streams streams(*world);
  const auto begin = std::chrono::steady_clock::now();
  patient.enqueue(streams.handles());
  patient.synchronize();
  EXPECT_GT(seconds_since(begin), 2e-6 * timeout_us) << "no rank was late";
  fault = Fault::late;
  const auto run_late = [&] {
    hasty.prepare();
    hasty.enqueue(streams.handles());
    hasty.synchronize();
  };
  others.bind(hasty);  // captured anew
  EXPECT_THAT(run_late, testing::ThrowsMessage<Timeout>(HasSubstr("waited for counter '")));
}

/// A failure before any launch does not break the world.
TEST_P(Faults, WhatCannotBeMadeReadyLeavesTheWorldAsItWas) {
  const Problem problem = small_problem(Op::gemm_allreduce, GetParam());
  const auto world = make();
  Operator operation(*world, problem, {.params = small_tiles(Mechanism::signal)});
  Matrices matrices(*world, problem, 1);
  EXPECT_THROW(operation.executable().run({}), InvalidArgument);
  matrices.bind(operation);
  const int rank = world->local_ranks().back();
  auto* const a = static_cast<char*>(matrices.at(rank, Role::a).data());
  operation.bind(rank, Role::a, a + 2);
  EXPECT_THROW(operation.run(), InvalidArgument);  // TMA loads need 16 bytes
  operation.bind(rank, Role::a, a);
  operation.run();
  world->barrier();
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Faults, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
