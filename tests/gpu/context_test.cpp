// Contexts on GPUs, in one process.
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>
#include <set>

#include "context_calls.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/runtime/devices.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::test {
namespace {

class Contexts : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda::count_gpus(why) < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed: " << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Contexts, testing::Values(1, 2, 4), testing::PrintToStringParamName());

TEST_P(Contexts, RandomCallsAreRight) {
  // Numbers of calls wrap at 2^32, and comparisons of them at 2^31.
  for (const std::uint32_t first : {0u, (1u << 31) - 100, 0u - 100}) {
    const auto world = make_cuda_world(GetParam(), {.first_epoch = first});
    random_calls(*world, {.seed = first, .operators = 6, .calls = 150});
    random_calls(*world, {.seed = first + 1, .operators = 6, .calls = 150, .registered = true});
  }
}

/// SHINGLE_SOAK_CALLS changes the number.
TEST_P(Contexts, LastForManyCalls) {
  const char* const set = std::getenv("SHINGLE_SOAK_CALLS");
  const int calls = set != nullptr ? std::atoi(set) : 1000;
  const auto world = make_cuda_world(GetParam(), {.on_step = delay_some});
  EXPECT_GE(soak(*world, {.seed = 3, .calls = calls}), calls);
}

/// A product of few rows loads its weights before the kernels ahead have ended, but not if these write them.
TEST_P(Contexts, WeightsThatTheCallAheadWritesAreCurrent) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has no peers";
  const auto world = make_cuda_world(GetParam());
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  Context context(*world, {.choose = [](const Problem&) { return LowLatencyParams{}; }});
  Problem sum, product;
  sum.op = Op::allreduce;
  product.op = Op::gemm_allreduce;
  sum.world = product.world = GetParam();
  sum.dtype = product.dtype = DType::bf16;
  sum.m = product.n = 4608;
  sum.n = sum.k = product.k = 128;
  product.m = 8;
  product.transpose_b = true;
  context.declare(sum);
  context.declare(product);
  constexpr int values = 3, calls = 30;  // parts are 1, 2 and 3 in turn
  const auto bits = [](float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  };
  std::vector<DeviceBuffer> memory;
  const auto matrix = [&](int rank, Shape shape, float value) -> MatrixView {
    const std::vector<std::uint16_t> image(static_cast<std::size_t>(shape.elements()), bits(value));
    memory.push_back(world->allocate(rank, image.size() * 2));
    cuda::check(cudaMemcpy(memory.back().data(), image.data(), image.size() * 2, cudaMemcpyDefault),
                "cudaMemcpy");
    return {memory.back().data(), shape, DType::bf16, shape.cols};
  };
  std::vector<std::vector<Argument>> sums(values), products(calls);
  for (const int rank : world->local_ranks()) {
    const MatrixView weights = matrix(rank, {sum.m, sum.n}, 0),
                     ones = matrix(rank, {product.m, product.k}, 1);
    for (int i = 0; i < values; ++i) {
      sums[static_cast<std::size_t>(i)].push_back(
          {rank, Role::a, matrix(rank, {sum.m, sum.n}, static_cast<float>(i + 1))});
      sums[static_cast<std::size_t>(i)].push_back({rank, Role::out, weights});
    }
    for (std::vector<Argument>& one : products) {
      one.push_back({rank, Role::a, ones});
      one.push_back({rank, Role::b, weights});
      one.push_back({rank, Role::out, matrix(rank, {product.m, product.n}, 0)});
    }
  }
  for (int i = 0; i < calls; ++i) {
    context.call(0, sum.m, sums[static_cast<std::size_t>(i % values)]);
    context.call(1, product.m, products[static_cast<std::size_t>(i)]);
  }
  context.synchronize();
  for (int i = 0; i < calls; ++i)
    for (const Argument& argument : products[static_cast<std::size_t>(i)]) {
      if (argument.role != Role::out) continue;
      std::vector<std::uint16_t> got(static_cast<std::size_t>(product.m * product.n));
      cuda::check(cudaMemcpy(got.data(), argument.matrix.data, got.size() * 2, cudaMemcpyDefault),
                  "cudaMemcpy");
      const std::uint16_t wanted =
          bits(static_cast<float>(GetParam() * GetParam() * product.k * (i % values + 1)));
      EXPECT_EQ(std::ranges::count(got, wanted), std::ssize(got))
          << "call " << i << " of rank " << argument.rank;
    }
}

/// A reduce-scatter whose matrices are freed and allocated anew before each run, with other values.
class Reallocated {
 public:
  explicit Reallocated(const World& world) : world_(world) {
    problem.op = Op::reducescatter;
    problem.world = world.size();
    problem.dtype = DType::f32;
    problem.m = 4096 * world.size();
    problem.n = problem.k = 1024;
  }
  /// Calls run(arguments) several times, and expects right results.
  void expect_right(const std::function<void(const std::vector<Argument>&)>& run) {
    for (int round = 0; round < 6; ++round) {
      matrices_.clear();
      arguments_.clear();
      const Shape whole{problem.m, problem.n}, shard{problem.m / problem.world, problem.n};
      for (const int rank : world_.local_ranks()) {
        const cuda::DeviceGuard guard(rank);
        add(rank, Role::a, whole, static_cast<float>(round + rank));
        add(rank, Role::out, shard, -1);
      }
      run(arguments_);
      const int ranks = problem.world;
      const auto wanted = static_cast<float>(ranks * round + ranks * (ranks - 1) / 2);
      for (std::size_t i = 1; i < matrices_.size(); i += 2) {
        std::vector<float> got(static_cast<std::size_t>(shard.elements()));
        cuda::check(cudaMemcpy(got.data(), matrices_[i].get(), matrices_[i].bytes(), cudaMemcpyDefault),
                    "cudaMemcpy");
        EXPECT_EQ(std::ranges::count(got, wanted), std::ssize(got)) << "round " << round;
      }
    }
    EXPECT_LT(addresses_.size(), allocated_) << "no address came again, so this run shows nothing";
  }

  Problem problem;
  const CopyEngineParams params{.trigger = EngineTrigger::direct};

 private:
  void add(int rank, Role role, Shape shape, float value) {
    const std::vector<float> image(static_cast<std::size_t>(shape.elements()), value);
    cuda::DeviceMemory& memory = matrices_.emplace_back(image.size() * sizeof(float));
    cuda::check(cudaMemcpy(memory.get(), image.data(), memory.bytes(), cudaMemcpyDefault), "cudaMemcpy");
    addresses_.insert(memory.get());
    ++allocated_;
    arguments_.push_back({rank, role, {memory.get(), shape, DType::f32, shape.cols}});
  }

  const World& world_;
  std::vector<cuda::DeviceMemory> matrices_;
  std::vector<Argument> arguments_;
  std::set<const void*> addresses_;
  std::size_t allocated_ = 0;
};

/// The driver binds copies in a graph to the allocations of their memory, and not to addresses.
TEST_P(Contexts, MatricesMayBeFreedAndOthersAllocatedAtTheirAddresses) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has no peers";
  const auto world = make_cuda_world(GetParam());
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  Reallocated sum(*world);
  Context context(*world, {.choose = [&](const Problem&) { return sum.params; }});
  context.declare(sum.problem);
  ASSERT_EQ(context.plan(0, sum.problem.m).mechanism, Mechanism::copy_engine);
  sum.expect_right([&](const std::vector<Argument>& arguments) {
    for (int call = 0; call < 4; ++call) context.call(0, sum.problem.m, arguments);
    context.synchronize();
  });
}

/// An operator finds the allocation of a matrix at each bind().
TEST_P(Contexts, MatricesOfAnOperatorMayBeFreedAndOthersAllocatedAtTheirAddresses) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has no peers";
  const auto world = make_cuda_world(GetParam());
  if (!world->capabilities().remote_memory) GTEST_SKIP() << "these GPUs do not reach each other's memory";
  Reallocated sum(*world);
  Operator operation(*world, sum.problem, {.params = sum.params});
  const std::vector<void*> streams(static_cast<std::size_t>(GetParam()), nullptr);
  sum.expect_right([&](const std::vector<Argument>& arguments) {
    for (const Argument& one : arguments) operation.bind(one.rank, one.role, one.matrix);
    operation.run(2);
    operation.prepare();
    for (int epoch = 0; epoch < 2; ++epoch) operation.enqueue(streams);
    operation.synchronize();
  });
}

TEST_P(Contexts, GraphsOutlastALargerArena) {
  if (GetParam() > 1) GTEST_SKIP() << "one rank is enough";
  const auto world = make_cuda_world(1);
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.m = 256, problem.n = 512, problem.k = 256;
  problem.dtype = DType::bf16;
  Context context(*world, {.choose = [](const Problem&) { return SignalParams{}; }});
  context.declare(problem);
  Dice dice(2);
  CallMatrices call(*world, random_inputs(problem, 1, Values::integers), dice);
  const cuda::Stream stream;
  const cuda::Graph graph = cuda::Graph::capture(stream.get(), [&](cudaStream_t on) {
    void* const handles[] = {on};
    context.call(0, problem.m, call.arguments(), handles);
  });
  const std::int64_t before = context.arena_bytes();
  problem.m = 4096;
  context.declare(problem);
  ASSERT_GT(context.arena_bytes(), before) << "the arena is another one now";
  for (int replay = 0; replay < 3; ++replay) {
    call.poison();
    graph.launch(stream.get());
    stream.synchronize();
    EXPECT_TRUE(call.check().passed);
  }
}

TEST_P(Contexts, ConcurrentReplaysAreAnError) {
  if (GetParam() > 1) GTEST_SKIP() << "one rank is enough";
  const auto world = make_cuda_world(1);
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.m = 4096, problem.n = 4096, problem.k = 4096;
  problem.dtype = DType::bf16;
  // Calls of `sequential` would not tell that they run.
  Context context(*world, {.choose = [](const Problem&) { return SignalParams{}; }, .timeout_us = 5e6});
  context.declare(problem);
  Dice dice(1);
  CallMatrices call(*world, random_inputs(problem, 1, Values::integers), dice);
  const cuda::Stream one, other;
  const auto capture = [&] {
    return cuda::Graph::capture(one.get(), [&](cudaStream_t on) {
      void* const handles[] = {on};
      for (int i = 0; i < 20; ++i) context.call(0, problem.m, call.arguments(), handles);
    });
  };
  const cuda::Graph first = capture(), second = capture();
  for (int i = 0; i < 20; ++i) {
    first.launch(one.get());
    second.launch(other.get());
  }
  one.synchronize();
  other.synchronize();
  try {
    context.call(0, problem.m, call.arguments());
    context.synchronize();
    FAIL() << "two calls ran at the same time";
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("another call of the context was running"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace shingle::test

#else
TEST(Contexts, NeedCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
