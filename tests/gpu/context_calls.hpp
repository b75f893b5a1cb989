// Calls of contexts on GPUs: random operators, mechanisms, m, pointers, row strides, streams and graphs, one
// behind the other with no barrier. Every result is checked.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/workspace.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/graph.hpp"
#include "cuda/raii/stream.hpp"
#include "few_rows.hpp"
#include "shingle/api/context.hpp"
#include "shingle/cuda/cuda.hpp"
#include "shingle/plan/print.hpp"
#include "support/random_problem.hpp"

namespace shingle::test {

inline int device_of_memory(const void* memory) {
  cudaPointerAttributes at{};
  cuda::check(cudaPointerGetAttributes(&at, memory), "cudaPointerGetAttributes");
  return at.device;
}

/// The matrices of one call on the local ranks. Some begin at odd addresses, or have gaps between rows; none
/// if they are in the registered memory of a context.
class CallMatrices {
 public:
  CallMatrices(World& world, std::unique_ptr<Inputs> inputs, Dice& dice, Context* registered = nullptr)
      : world_(world), registered_(registered), inputs_(std::move(inputs)), dense_(world, *inputs_) {
    const Problem& problem = inputs_->problem();
    for (const int rank : world.local_ranks())
      for (const Role role : roles_of(problem)) place(rank, role, dice);
  }

  const Problem& problem() const { return inputs_->problem(); }
  const std::vector<Argument>& arguments() const { return arguments_; }
  void poison() {
    for (const Placed& at : placed_)
      if (is_output(at.role)) world_.fill(at.rank, at.data, 0xff, static_cast<std::size_t>(at.bytes));
  }
  Check check() {
    for (const Placed& at : placed_)
      if (is_output(at.role)) copy(at, true);
    return shingle::check(*inputs_, dense_.outputs());
  }

 private:
  struct Placed {
    int rank = 0;
    Role role = Role::a;
    DeviceBuffer memory{};
    char* data = nullptr;
    Shape shape{};
    std::int64_t stride = 0, bytes = 0;
  };

  void place(int rank, Role role, Dice& dice) {
    const Problem& problem = inputs_->problem();
    Placed at{.rank = rank, .role = role, .shape = shape_of(problem, role, rank)};
    const auto element = static_cast<std::int64_t>(size_bytes(problem.dtype));
    const auto in_20_of_100 = [&](std::int64_t most) { return chance(dice, 20) ? dice.size(1, most) : 0; };
    const std::int64_t gap = in_20_of_100(16), offset = element * in_20_of_100(9);
    at.stride = at.shape.cols + (registered_ != nullptr ? 0 : gap);
    at.bytes = std::max<std::int64_t>(at.shape.rows * at.stride * element, 1);
    // As large on all ranks, whose shards may have different sizes.
    const std::int64_t most = std::max(at.bytes, shape_of(problem, role, 0).elements() * element);
    at.memory = registered_ != nullptr ? registered_->allocate(rank, most)
                                       : world_.allocate(rank, static_cast<std::size_t>(at.bytes + offset));
    at.data = static_cast<char*>(at.memory.data()) + (registered_ != nullptr ? 0 : offset);
    if (is_input(role)) copy(at, false);
    arguments_.push_back({rank, role, {at.data, at.shape, problem.dtype, at.stride}});
    placed_.push_back(std::move(at));
  }
  /// Copies to the dense matrix, or from it.
  void copy(const Placed& at, bool to_dense) {
    if (at.shape.rows == 0 || at.shape.cols == 0) return;
    const auto element = size_bytes(inputs_->problem().dtype);
    const std::size_t row = static_cast<std::size_t>(at.shape.cols) * element,
                      pitch = static_cast<std::size_t>(at.stride) * element;
    void* const dense = const_cast<void*>(dense_.data(at.rank, at.role));
    const auto rows = static_cast<std::size_t>(at.shape.rows);
    const cuda::DeviceGuard guard(device_of_memory(at.data));
    cuda::check(to_dense ? cudaMemcpy2D(dense, row, at.data, pitch, row, rows, cudaMemcpyDeviceToDevice)
                         : cudaMemcpy2D(at.data, pitch, dense, row, row, rows, cudaMemcpyDeviceToDevice),
                "cudaMemcpy2D");
    cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
  }

  World& world_;
  Context* registered_;
  std::unique_ptr<Inputs> inputs_;
  Workspace dense_;
  std::vector<Placed> placed_;
  std::vector<Argument> arguments_;
};

struct RandomCalls {
  std::uint64_t seed = 0;
  int operators = 4;
  int calls = 100;
  bool registered = false;  ///< matrices are in registered memory
};

/// A problem of a context, with m as its maximum.
inline Problem draw_declared(Dice& dice, int world) {
  Problem p;
  p.world = world;
  p.op = one_of(dice, {Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::mlp});
  p.m = dice.size(world, chance(dice, 30) ? 1500 : 500);
  p.n = 8 * dice.size(1, 80);
  p.k = 8 * dice.size(1, 80);
  p.dtype = DType::bf16;
  if (p.op == Op::gemm_allreduce && chance(dice, 40)) {  // weights that may be loaded early
    p.m = dice.size(world, 150);
    p.n = 8 * dice.size(480, 700);
    p.k = 64 * dice.size(1, 6);
  }
  if (p.traits().chains()) p.inner = 8 * dice.size(1, 40);
  p.transpose_b = chance(dice, 60);
  if (chance(dice, 30)) p.epilogue.bias = true;
  if (chance(dice, 20)) p.epilogue.activation = one_of(dice, {Activation::relu, Activation::gelu});
  if (chance(dice, 30)) p.norm = {true, chance(dice, 50)};
  return p;
}

/// Mechanism and params for a problem, drawn from the problem alone, so that all ranks draw the same.
inline Params draw_params_for(const Problem& problem, std::uint64_t seed) {
  std::uint64_t hash = seed * 0x9e3779b97f4a7c15ull;
  for (const char c : describe(problem)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  Dice dice(hash);
  switch (dice.size(0, 5)) {
    case 0:
      return SequentialParams{};
    case 1:
      return ChunkedParams{};
    case 2:
      return SignalParams{};
    case 3:
      return LowLatencyParams{};
    case 4: {
      RingParams params;
      params.engines = static_cast<std::int32_t>(dice.size(0, 2));
      params.slices = static_cast<std::int32_t>(dice.size(1, 3));
      return params;
    }
    default: {
      FusedParams params;
      params.one_shot = problem.op == Op::gemm_allreduce && chance(dice, 40);
      params.stage_fp32 = chance(dice, 30);
      params.mover = one_of(dice, {Mover::copy_engine, Mover::store});
      params.pull = chance(dice, 50);  // of registered matrices
      return params;
    }
  }
}

/// Makes random calls and checks each. Returns their number.
inline int random_calls(World& world, const RandomCalls& what) {
  Dice dice(what.seed + 17 * static_cast<std::uint64_t>(world.size()));
  std::map<std::string, int> served;
  ContextOptions options;
  options.most_plans = 12;
  options.verify = true;
  options.timeout_us = 10e6;
  if (what.registered) options.registered_bytes = 256 << 20;
  options.choose = [&](const Problem& problem) { return draw_params_for(problem, what.seed); };
  Context context(world, options);
  std::vector<Problem> operators;
  while (static_cast<int>(operators.size()) < what.operators) {
    const Problem problem = draw_declared(dice, world.size());
    context.declare(problem);
    operators.push_back(problem);
  }
  std::vector<std::vector<cuda::Stream>> streams(3);  // of the user: three for each local rank
  std::list<CallMatrices> calls;
  int made = 0;
  const auto draw_call = [&]() -> std::pair<int, CallMatrices*> {
    const int op = static_cast<int>(dice.size(0, what.operators - 1));
    Problem problem = operators[static_cast<std::size_t>(op)];
    problem.m = chance(dice, 20) ? dice.size(1, world.size() + 1) : dice.size(1, problem.m);
    auto inputs = random_inputs(problem, static_cast<std::uint64_t>(dice.size(0, 1 << 20)), Values::integers);
    auto& call = calls.emplace_back(world, std::move(inputs), dice, what.registered ? &context : nullptr);
    call.poison();
    return {op, &call};
  };
  std::vector<int> devices;  // of the local ranks
  for (const int rank : world.local_ranks())
    devices.push_back(device_of_memory(world.allocate(rank, 1).data()));
  for (auto& user : streams)
    for (const int device : devices) {
      const cuda::DeviceGuard guard(device);
      user.emplace_back();
    }
  const auto all_of = [&](const std::vector<cuda::Stream>& user) {
    std::vector<void*> handles;
    for (const cuda::Stream& stream : user) handles.push_back(stream.get());
    return handles;
  };
  const auto expect_right = [&] {
    context.synchronize();
    for (CallMatrices& call : calls) {
      const Check result = call.check();
      EXPECT_TRUE(result.passed) << describe(call.problem()) << ": error " << result.max_error << " above "
                                 << result.tolerance << " at " << result.worst << '\n'
                                 << name(mechanism_of(draw_params_for(call.problem(), what.seed)));
    }
    calls.clear();
  };
  while (made < what.calls && !testing::Test::HasFailure()) {
    const bool graph = world.local_ranks().size() == 1 && chance(dice, 20);
    const auto& user = streams[static_cast<std::size_t>(dice.size(0, 2))];
    const int together = static_cast<int>(dice.size(1, 6));
    if (!graph) {
      for (int i = 0; i < together; ++i, ++made) {
        const auto [op, call] = draw_call();
        ++served[std::string(name(context.plan(op, call->problem().m).mechanism))];
        context.call(op, call->problem().m, call->arguments(),
                     chance(dice, 30) ? std::vector<void*>{} : all_of(user));
      }
      if (chance(dice, 50)) expect_right();
      continue;
    }
    expect_right();
    const cuda::DeviceGuard guard(devices[0]);
    std::vector<std::pair<int, CallMatrices*>> captured;
    for (int i = 0; i < together; ++i) captured.push_back(draw_call());
    const cuda::Graph replayed = cuda::Graph::capture(user[0].get(), [&](cudaStream_t on) {
      for (const auto& [op, call] : captured) {
        void* const handles[] = {on};
        context.call(op, call->problem().m, call->arguments(), handles);
      }
    });
    for (int replay = 0; replay < 3; ++replay, made += together) {
      for (CallMatrices& call : calls) call.poison();
      replayed.launch(user[0].get());
      user[0].synchronize();
      for (CallMatrices& call : calls)
        EXPECT_TRUE(call.check().passed) << "replayed: " << describe(call.problem());
    }
    calls.clear();
    context.synchronize();
  }
  expect_right();
  for (const auto& [mechanism, times] : served) std::printf("%s: %d calls\n", mechanism.c_str(), times);
  return what.calls;
}

/// Delays of steps by random times, in all kernels of a world: for CudaOptions::on_step.
inline void delay_some(const CudaStepEvent& at) {
  const auto where = static_cast<std::uint32_t>(at.rank * 7919 + at.lane * 104729 + at.step * 1299709);
  if ((where * 2654435761u >> 20) % 8 == 0)
    cuda::check(cuda::launch_delay(at.epoch, where, 200'000, static_cast<cudaStream_t>(at.stream)),
                "launch a delay");
}

struct Soak {
  std::uint64_t seed = 0;
  int calls = 1000;
  int check_every = 50;
  int workers = 0;  ///< ContextOptions::workers
  bool graphs = true;
  bool few_rows = false;  ///< decoding: all calls by low-latency
  double timeout_us = 20e6;
};

/// Calls of some operators over and over, on several streams and in graphs. Every so often outputs are
/// poisoned before a call, and checked after it.
class Soaking {
 public:
  /// Declares operators and allocates all matrices. Collective.
  Soaking(World& world, const Soak& what)
      : world_(world),
        what_(what),
        dice_(what.seed + 31 * static_cast<std::uint64_t>(world.size())),
        device_(device_of_memory(world.allocate(world.local_ranks()[0], 1).data())),
        context_(world, {.choose = [what](const Problem& problem) -> Params {
                           if (what.few_rows) return LowLatencyParams{};
                           return draw_params_for(problem, what.seed);
                         },
                         .workers = what.workers,
                         .timeout_us = what.timeout_us}) {
    std::vector<Problem> declared;
    for (int i = 0; i < operators; ++i) {
      declared.push_back(what.few_rows ? draw_few_rows(dice_, world.size())
                                       : draw_declared(dice_, world.size()));
      context_.declare(declared.back());
    }
    for (int i = 0; i < sets; ++i) {
      const int op = static_cast<int>(dice_.size(0, operators - 1));
      Problem problem = declared[static_cast<std::size_t>(op)];
      problem.m = chance(dice_, 20) ? dice_.size(1, world.size() + 1) : dice_.size(1, problem.m);
      auto inputs = random_inputs(problem, static_cast<std::uint64_t>(i), Values::integers);
      pool_.emplace_back(op, std::make_unique<CallMatrices>(world, std::move(inputs), dice_));
    }
    const cuda::DeviceGuard guard(device_);
    for (int i = 0; i < 3; ++i) streams_.emplace_back();
    for (int i = 0; alone() && what.graphs && i < graphs; ++i) capture();
  }

  /// Returns the number of calls.
  int run() {
    const cuda::DeviceGuard guard(device_);
    int made = 0, next_check = 0, told = 0;
    while (made < what_.calls && !testing::Test::HasFailure()) {
      if (made >= told + 100'000) std::printf("[%d calls]\n", told = made), std::fflush(stdout);
      if (made >= next_check) {
        next_check += what_.check_every;
        check_one(made++);
      } else if (!captured_.empty() && chance(dice_, 40)) {
        // Replays are ordered with other calls by their stream: all others are done.
        context_.synchronize();
        const auto& [graph, calls] = captured_[static_cast<std::size_t>(dice_.size(0, graphs - 1))];
        for (std::int64_t times = dice_.size(1, 4); times > 0; --times, made += calls)
          graph.launch(streams_[0].get());
        streams_[0].synchronize();
      } else {
        for (std::int64_t times = dice_.size(1, 12); times > 0; --times, ++made) call(any(), any_stream());
      }
    }
    context_.synchronize();
    captured_.clear();
    return made;
  }

 private:
  static constexpr int operators = 5, sets = 24, graphs = 6;

  bool alone() const { return world_.local_ranks().size() == 1; }
  std::size_t any() { return static_cast<std::size_t>(dice_.size(0, sets - 1)); }
  cudaStream_t any_stream() { return streams_[static_cast<std::size_t>(dice_.size(0, 2))].get(); }
  void call(std::size_t which, cudaStream_t on) {
    const auto& [op, matrices] = pool_[which];
    void* const handles[] = {on};
    context_.call(op, matrices->problem().m, matrices->arguments(),
                  alone() ? std::span<void* const>(handles) : std::span<void* const>{});
  }
  void capture() {
    std::vector<std::size_t> members(static_cast<std::size_t>(dice_.size(1, 5)));
    for (std::size_t& member : members) member = any();
    captured_.emplace_back(cuda::Graph::capture(streams_[0].get(),
                                                [&](cudaStream_t on) {
                                                  for (const std::size_t member : members) call(member, on);
                                                }),
                           static_cast<int>(members.size()));
  }
  void check_one(int made) {
    context_.synchronize();
    const std::size_t which = any();
    pool_[which].second->poison();
    call(which, any_stream());
    context_.synchronize();
    const Check result = pool_[which].second->check();
    EXPECT_TRUE(result.passed) << "call " << made << ": " << describe(pool_[which].second->problem())
                               << ": error " << result.max_error << " at " << result.worst;
  }

  World& world_;
  const Soak what_;
  Dice dice_;
  int device_;
  Context context_;
  std::vector<std::pair<int, std::unique_ptr<CallMatrices>>> pool_;
  std::vector<cuda::Stream> streams_;
  std::vector<std::pair<cuda::Graph, int>> captured_;
};

inline int soak(World& world, const Soak& what) {
  return Soaking(world, what).run();
}

/// Calls one operator with this m, and waits for it.
inline void call_with(World& world, std::int64_t m) {
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.world = world.size();
  problem.m = 512;
  problem.n = 256;
  problem.k = 128;
  problem.dtype = DType::bf16;
  ContextOptions options;
  options.timeout_us = 5e6;
  Context context(world, options);
  context.declare(problem);
  problem.m = m;
  Dice dice(1);
  CallMatrices call(world, random_inputs(problem, 1, Values::integers), dice);
  context.call(0, m, call.arguments());
  context.synchronize();
}

}  // namespace shingle::test
