// Copy engines on streams and in graphs: rows in place, and captures. operators_test.cpp checks the results,
// peer_test.cpp checks epochs back to back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef SHINGLE_WITH_CUDA

#include "asynchronous.hpp"
#include "cuda/peer/access.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda::test {
namespace {

using testing::HasSubstr;

constexpr int ranks = 2;

/// Two ranks with peer access to each other.
class CopyEngine : public testing::Test {
 protected:
  void SetUp() override {
    if (gpus() < ranks || !no_peer_access({0, 1}).empty())
      GTEST_SKIP() << "two GPUs that reach each other are needed";
    world = make_cuda_world(ranks);
  }
  Operator gather(CopyVariant variant, EngineTrigger trigger, bool prelaunch) {
    const Problem problem{.op = Op::allgather, .world = ranks, .m = 200, .n = 96, .k = 96};
    const CopyEngineParams params{.variant = variant, .prelaunch = prelaunch, .trigger = trigger};
    return {*world, problem, {.params = params, .timeout_us = 10e6}};
  }
  std::unique_ptr<World> world;
};

/// A rank's rows that are already at their place in the result stay there; only the others are copied.
TEST_F(CopyEngine, GathersInPlace) {
  for (const CopyVariant variant :
       {CopyVariant::b2b, CopyVariant::pcpy, CopyVariant::bcst, CopyVariant::ring})
    for (const bool prelaunch : {false, true}) {
      SCOPED_TRACE(std::string(name(variant)) + (prelaunch ? ", prelaunched" : ""));
      Operator operation = gather(variant, EngineTrigger::direct, prelaunch);
      const auto inputs = random_inputs(operation.problem(), 3);
      std::vector<DeviceBuffer> outs;
      std::vector<Output> outputs;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto own = static_cast<std::size_t>(bytes_of(operation.problem(), Role::a, rank));
        DeviceBuffer& out = outs.emplace_back(world->allocate(rank, ranks * own));
        world->fill(rank, out.data(), 0xff, out.bytes());
        auto* const a = static_cast<std::byte*>(out.data()) + static_cast<std::size_t>(rank) * own;
        write_input(*world, *inputs, rank, Role::a, a);
        operation.bind(rank, Role::a, a);
        operation.bind(rank, Role::out, out.data());
      }
      operation.run();
      std::vector<std::vector<std::byte>> copies;
      for (int rank = 0; rank < ranks; ++rank) {
        const DeviceBuffer& out = outs[static_cast<std::size_t>(rank)];
        copies.emplace_back(out.bytes());
        world->download(rank, copies.back().data(), out.data(), out.bytes());
        outputs.push_back({rank, Role::out, copies.back().data()});
      }
      const Check checked = shingle::check(*inputs, outputs);
      EXPECT_TRUE(checked.passed) << checked.worst;
    }
}

/// If a rank has one engine and kernels trigger it, its lane can be a branch of a graph. Replays give the
/// results of runs.
TEST_F(CopyEngine, OneDirectEngineIsCaptured) {
  constexpr int replays = 4;
  for (const CopyVariant variant : {CopyVariant::b2b, CopyVariant::ring}) {
    SCOPED_TRACE(std::string(name(variant)));
    Operator operation = gather(variant, EngineTrigger::direct, true);
    Matrices matrices(*world, operation.problem(), 2);
    matrices.bind(operation);
    matrices.reserve(replays);
    operation.prepare();
    const Streams streams(*world);
    streams.each([&](int, cudaStream_t stream) {
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    });
    operation.enqueue(streams.handles());
    std::vector<cudaGraph_t> captured;
    streams.each([&](int, cudaStream_t stream) {
      check(cudaStreamEndCapture(stream, &captured.emplace_back()), "cudaStreamEndCapture");
    });
    std::vector<cudaGraphExec_t> graphs;
    for (const cudaGraph_t graph : captured) {
      check(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0), "cudaGraphInstantiate");
      cudaGraphDestroy(graph);
    }
    for (int number = 0; number < replays; ++number) {
      std::size_t at = 0;
      streams.each([&](int rank, cudaStream_t stream) {
        matrices.bring(rank, number % 2, stream);
        check(cudaGraphLaunch(graphs[at++], stream), "cudaGraphLaunch");
        matrices.keep(rank, number, stream);
      });
    }
    ASSERT_TRUE(streams.wait());
    for (int number = 0; number < replays; ++number) EXPECT_TRUE(matrices.right(number, number % 2));
    for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  }
}

TEST_F(CopyEngine, WhatTheHostMediatesIsNotCaptured) {
  Operator operation = gather(CopyVariant::b2b, EngineTrigger::host, true);
  Matrices matrices(*world, operation.problem(), 1);
  matrices.bind(operation);
  operation.prepare();
  const Streams streams(*world);
  streams.each([&](int, cudaStream_t stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  });
  EXPECT_THAT([&] { operation.enqueue(streams.handles()); },
              testing::ThrowsMessage<Unsupported>(HasSubstr("host lanes")));
  streams.each([&](int, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphDestroy(graph);
  });
  operation.run();  // the operator still works
}

}  // namespace
}  // namespace shingle::cuda::test

#else
TEST(CopyEngine, NeedsCuda) {
  GTEST_SKIP() << "this build has no CUDA backend: configure the cuda preset";
}
#endif
