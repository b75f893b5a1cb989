// Operators as asynchronous calls: order with the user's own work, capture, and new matrices.
// tests/CMakeLists.txt also runs these tests with a single hardware queue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cstdlib>

#include "asynchronous.hpp"
#include "cuda/raii/graph.hpp"
#include "lower/graph_fitness.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda::test {
namespace {

constexpr std::uint64_t late_ns = 3'000'000;  // delay of the user's work before an epoch

/// True if lanes cannot be branches of a graph because the driver has one queue for all streams.
bool one_queue() {
  const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return set != nullptr && std::atoi(set) == 1;
}

/// Several operators with all mechanisms, on a world of that many ranks.
class Enqueue : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (gpus() < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed, there are " << gpus();
    world = make_cuda_world(GetParam());
  }
  /// Calls body(operator, its matrices) for every mechanism.
  template <class Body>
  void each(Op op, int sets, Body body) {
    const Problem problem = small_problem(op, GetParam());
    for (const Params& params : ways(*world)) {
      if (!make_plan(problem, world->machine(), params)) continue;
      SCOPED_TRACE(describe(problem) + " by " + describe(params));
      Operator operation(*world, problem, {.params = params, .verify = true, .timeout_us = 20e6});
      Matrices matrices(*world, problem, sets);
      matrices.bind(operation);
      body(operation, matrices);
      if (HasFatalFailure()) return;
    }
  }
  std::unique_ptr<World> world;
};
INSTANTIATE_TEST_SUITE_P(Worlds, Enqueue, testing::Values(1, 2, 4), testing::PrintToStringParamName());

/// The stream delivers inputs late. Directly after the epoch, it copies the results and poisons all matrices.
/// The first inputs come so late that the calls of all ranks fit in between. Two epochs always fit into the
/// driver's queues; of a plan with many launches, a third call waits until the first epoch has ended.
TEST_P(Enqueue, ComesBehindTheUsersWorkAndBeforeWhatFollows) {
  constexpr int epochs = 5, in_flight = 2;
  constexpr std::uint64_t first_ns = 100'000'000;
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm})
    each(op, 2, [&](Operator& operation, Matrices& matrices) {
      matrices.reserve(epochs);
      const Streams streams(*world);
      operation.prepare();
      const auto begin = std::chrono::steady_clock::now();
      for (int epoch = 0; epoch < epochs; ++epoch) {
        streams.each([&](int rank, cudaStream_t stream) {
          const std::uint64_t ns = epoch == 0 ? first_ns : late_ns * static_cast<std::uint64_t>(1 + rank % 2);
          check(launch_delay(nullptr, 0, ns, stream), "launch_delay");
          matrices.bring(rank, epoch % 2, stream);
        });
        operation.enqueue(streams.handles());
        streams.each([&](int rank, cudaStream_t stream) { matrices.keep(rank, epoch, stream); });
        if (epoch + 1 == in_flight) {
          EXPECT_LT(seconds_since(begin), 1e-9 * first_ns) << "enqueue() has waited for the device";
        }
      }
      operation.synchronize();
      ASSERT_TRUE(streams.wait());
      for (int epoch = 0; epoch < epochs; ++epoch) EXPECT_TRUE(matrices.right(epoch, epoch % 2));
    });
}

/// Epochs of one operator share its memory, so they run one after another on any streams.
TEST_P(Enqueue, KeepsTheOrderOfCallsOverStreams) {
  each(Op::gemm_allreduce, 1, [&](Operator& operation, Matrices& matrices) {
    matrices.reserve(1);
    const Streams first(*world), second(*world);
    operation.prepare();
    first.each([&](int rank, cudaStream_t stream) {
      check(launch_delay(nullptr, 0, late_ns, stream), "launch_delay");
      matrices.bring(rank, 0, stream);
    });
    operation.enqueue(first.handles());
    operation.enqueue(second.handles());
    second.each([&](int rank, cudaStream_t stream) { matrices.keep(rank, 0, stream); });
    ASSERT_TRUE(second.wait());
    EXPECT_TRUE(matrices.right(0, 0));
  });
}

TEST_P(Enqueue, IsPartOfTheUsersCapture) {
  constexpr int replays = 10;
  each(Op::gemm_allreduce, 2, [&](Operator& operation, Matrices& matrices) {
    matrices.reserve(replays);
    const Streams streams(*world);
    operation.prepare();
    const auto begin_capture = [&] {
      streams.each([&](int, cudaStream_t stream) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      });
    };
    const auto end_capture = [&] {
      std::vector<cudaGraph_t> graphs;
      streams.each([&](int, cudaStream_t stream) {
        graphs.emplace_back();
        check(cudaStreamEndCapture(stream, &graphs.back()), "cudaStreamEndCapture");
      });
      return graphs;
    };
    begin_capture();
    const bool branches = operation.plan().ranks[0].lanes.size() > 1;
    if (branches && (one_queue() || !unfit_for_graph(operation.plan()).empty())) {
      EXPECT_THROW(operation.enqueue(streams.handles()), Unsupported);
      for (const cudaGraph_t graph : end_capture()) cudaGraphDestroy(graph);
      operation.run();  // the operator still works
      return;
    }
    operation.enqueue(streams.handles());
    std::vector<cudaGraphExec_t> graphs;
    for (const cudaGraph_t graph : end_capture()) {
      check(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0), "cudaGraphInstantiate");
      cudaGraphDestroy(graph);
    }
    const auto replay = [&](int number) {
      std::size_t at = 0;
      streams.each([&](int rank, cudaStream_t stream) {
        matrices.bring(rank, number % 2, stream);
        check(cudaGraphLaunch(graphs[at++], stream), "cudaGraphLaunch");
        matrices.keep(rank, number, stream);
      });
    };
    for (int number = 0; number < replays; ++number) replay(number);
    ASSERT_TRUE(streams.wait());
    for (int number = 0; number < replays; ++number) EXPECT_TRUE(matrices.right(number, number % 2));

    // The operator can use other matrices afterwards; the graph keeps its own.
    Matrices others(*world, operation.problem(), 2);
    others.reserve(1);
    others.bind(operation);
    operation.prepare();
    for (int number = 0; number < 2; ++number) replay(number);
    ASSERT_TRUE(streams.wait());
    streams.each([&](int rank, cudaStream_t stream) { others.bring(rank, 1, stream); });
    operation.enqueue(streams.handles());
    streams.each([&](int rank, cudaStream_t stream) { others.keep(rank, 0, stream); });
    ASSERT_TRUE(streams.wait());
    for (int number = 0; number < 2; ++number) EXPECT_TRUE(matrices.right(number, number % 2));
    EXPECT_TRUE(others.right(0, 1));
    for (const cudaGraphExec_t graph : graphs) check(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  });
}

/// Residual and sum share memory: an epoch that ran twice would add twice.
TEST_P(Enqueue, RunsOncePerRunInPlace) {
  Problem problem = small_problem(Op::gemm_allreduce, GetParam());
  problem.norm = {.enabled = true, .residual = true};
  const auto inputs = random_inputs(problem, 1, Values::integers);
  for (const Params& params : ways(*world)) {
    if (!make_plan(problem, world->machine(), params)) continue;
    SCOPED_TRACE(describe(params));
    Operator operation(*world, problem, {.params = params});
    Workspace workspace(*world, *inputs);
    workspace.bind(operation);
    std::map<int, DeviceBuffer> in_place;
    for (const int rank : world->local_ranks()) {
      const auto bytes = static_cast<std::size_t>(bytes_of(problem, Role::residual, rank));
      in_place[rank] = world->allocate(rank, bytes);
      for (const Role role : {Role::residual, Role::sum})
        operation.bind(rank, role, in_place.at(rank).data());
    }
    for (int run = 0; run < 4; ++run) {
      for (const auto& [rank, memory] : in_place)
        write_input(*world, *inputs, rank, Role::residual, memory.data());
      operation.run();
      std::vector<std::vector<char>> sums;
      std::vector<Output> outputs;
      for (const auto& [rank, memory] : in_place) {
        auto& copy = sums.emplace_back(memory.bytes());
        world->download(rank, copy.data(), memory.data(), copy.size());
        outputs.push_back({rank, Role::sum, copy.data()});
      }
      const Check checked = shingle::check(*inputs, outputs);
      EXPECT_TRUE(checked.passed) << "run " << run << ": error " << checked.max_error << " in "
                                  << checked.worst;
    }
  }
}

TEST_P(Enqueue, TwoOperatorsTakeTurnsOnTwoStreams) {
  constexpr int epochs = 30;
  const Problem one = small_problem(Op::gemm_allreduce, GetParam()),
                two = small_problem(Op::gemm_reducescatter, GetParam());
  for (const Params& params : ways(*world)) {
    if (!make_plan(one, world->machine(), params) || !make_plan(two, world->machine(), params)) continue;
    SCOPED_TRACE(describe(params));
    Operator first(*world, one, {.params = params}), second(*world, two, {.params = params});
    Matrices of_first(*world, one, 2), of_second(*world, two, 2);
    of_first.reserve(epochs), of_second.reserve(epochs);
    of_first.bind(first), of_second.bind(second);
    const Streams here(*world), there(*world);
    first.prepare(), second.prepare();
    for (int epoch = 0; epoch < epochs; ++epoch) {
      here.each([&](int rank, cudaStream_t stream) { of_first.bring(rank, epoch % 2, stream); });
      first.enqueue(here.handles());
      here.each([&](int rank, cudaStream_t stream) { of_first.keep(rank, epoch, stream); });
      there.each([&](int rank, cudaStream_t stream) { of_second.bring(rank, epoch / 2 % 2, stream); });
      second.enqueue(there.handles());
      there.each([&](int rank, cudaStream_t stream) { of_second.keep(rank, epoch, stream); });
    }
    ASSERT_TRUE(here.wait());
    ASSERT_TRUE(there.wait());
    for (int epoch = 0; epoch < epochs; ++epoch) {
      EXPECT_TRUE(of_first.right(epoch, epoch % 2));
      EXPECT_TRUE(of_second.right(epoch, epoch / 2 % 2));
    }
  }
}

TEST_P(Enqueue, RefusesWhatIsNotReady) {
  const Problem problem = small_problem(Op::gemm_allreduce, GetParam());
  Operator operation(*world, problem, {.params = SequentialParams{}});
  Matrices matrices(*world, problem, 1);
  const Streams streams(*world);
  EXPECT_THROW(operation.prepare(), InvalidArgument);
  EXPECT_THROW(operation.executable().prepare(1e6), InvalidArgument);  // also without Operator in between
  matrices.bind(operation);
  EXPECT_THAT([&] { operation.enqueue(streams.handles()); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("call prepare() again")));
  operation.prepare();
  EXPECT_THROW(operation.enqueue(std::span<void* const>()), InvalidArgument);
  operation.enqueue(streams.handles());
  operation.synchronize();
  const Matrices others(*world, problem, 1);
  others.bind(operation);
  EXPECT_THROW(operation.enqueue(streams.handles()), InvalidArgument);
  operation.run();  // none of the rejected calls has broken the world
  operation.enqueue(streams.handles());
  operation.synchronize();
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(Enqueue, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
