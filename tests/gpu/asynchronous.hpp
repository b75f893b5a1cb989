// Helpers for tests that enqueue operators on the caller's streams: matrices, streams and waits with a
// deadline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "api/workspace.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/runtime/devices.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::cuda::test {

inline int gpus() {
  std::string why;
  return count_gpus(why);
}

/// Small enough to run thousands of times. With small_tiles() it has three waves on a GPU of 132 SMs.
inline Problem small_problem(Op op, int world) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = 1100;
  p.n = 2048;
  p.k = 256;
  p.dtype = DType::bf16;
  p.transpose_b = true;
  return p;
}

/// Params with several groups or slices, and so with several waits between lanes.
inline Params small_tiles(Mechanism mechanism) {
  if (mechanism == Mechanism::signal) return SignalParams{.tile = {64, 128}, .comm_workers = 32};
  if (mechanism == Mechanism::chunked) return ChunkedParams{.chunks = 3};
  if (mechanism == Mechanism::ring) return RingParams{.slices = 3};
  return default_params(mechanism);
}

inline std::string describe(const Params& params) {
  return std::string(name(mechanism_of(params))) + ' ' + shingle::describe(list_of(params));
}

/// All mechanisms that need no peer memory, and the ring by copy engines if there is peer memory.
inline std::vector<Params> ways(const World& world) {
  std::vector<Params> ways;
  for (const Mechanism mechanism :
       {Mechanism::sequential, Mechanism::chunked, Mechanism::signal, Mechanism::ring})
    ways.push_back(small_tiles(mechanism));
  if (world.capabilities().remote_memory && world.size() > 1)
    ways.push_back(RingParams{.engines = 1, .slices = 3});
  return ways;
}

/// Matrices of a problem, with `sets` sets of inputs and copies of the outputs of epochs.
class Matrices {
 public:
  Matrices(World& world, const Problem& problem, int sets) : problem_(problem) {
    for (int set = 0; set < sets; ++set)
      inputs_.push_back(random_inputs(problem, static_cast<std::uint64_t>(set + 1), Values::integers));
    for (const int rank : world.local_ranks())
      for (const Role role : roles_of(problem)) {
        const auto bytes = static_cast<std::size_t>(bytes_of(problem, role, rank));
        bound_[{rank, role}] = world.allocate(rank, bytes);
        if (!is_input(role)) continue;
        for (int set = 0; set < sets; ++set) {
          auto& memory = sources_[{rank, role, set}] = world.allocate(rank, bytes);
          write_input(world, *inputs_[static_cast<std::size_t>(set)], rank, role, memory.data());
        }
        world.upload(rank, bound_.at({rank, role}).data(), std::vector<char>(bytes, '\xff').data(), bytes);
      }
  }

  void bind(Operator& op) const {
    for (const auto& [key, memory] : bound_) op.bind(key.first, key.second, memory.data());
  }
  const DeviceBuffer& at(int rank, Role role) const { return bound_.at({rank, role}); }

  /// Enqueues copies of an input set to the bound matrices, and poisons the outputs.
  void bring(int rank, int set, cudaStream_t stream) const {
    for (const Role role : roles_of(problem_)) {
      const DeviceBuffer& to = at(rank, role);
      if (is_input(role))
        check(cudaMemcpyAsync(to.data(), sources_.at({rank, role, set}).data(), to.bytes(),
                              cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
      else
        check(cudaMemsetAsync(to.data(), 0xff, to.bytes(), stream), "cudaMemsetAsync");
    }
  }
  /// Enqueues copies of the outputs to slot `number`, and poisons all matrices.
  void keep(int rank, int number, cudaStream_t stream) const {
    for (const Role role : roles_of(problem_)) {
      const DeviceBuffer& from = at(rank, role);
      if (is_output(role))
        check(cudaMemcpyAsync(kept_.at({rank, role, number}).get(), from.data(), from.bytes(),
                              cudaMemcpyDeviceToHost, stream),
              "cudaMemcpyAsync");
      check(cudaMemsetAsync(from.data(), 0xff, from.bytes(), stream), "cudaMemsetAsync");
    }
  }
  /// Allocates pinned memory for keep(). Must not be called while work is in flight.
  void reserve(int numbers) {
    for (const auto& [key, memory] : bound_)
      for (int number = 0; number < numbers; ++number)
        if (is_output(key.second)) kept_[{key.first, key.second, number}] = PinnedMemory(memory.bytes());
  }

  /// True if both slots hold the same outputs of a rank.
  bool same(int rank, int number, int other) const {
    return std::ranges::all_of(roles_of(problem_), [&](Role role) {
      if (!is_output(role)) return true;
      const PinnedMemory& kept = kept_.at({rank, role, number});
      return std::memcmp(kept.get(), kept_.at({rank, role, other}).get(), kept.bytes()) == 0;
    });
  }
  /// Checks the outputs in slot `number` against an input set.
  testing::AssertionResult right(int number, int set) const {
    std::vector<Output> outputs;
    for (const auto& [key, memory] : bound_)
      if (is_output(key.second))
        outputs.push_back({key.first, key.second, kept_.at({key.first, key.second, number}).get()});
    const Check checked = shingle::check(*inputs_[static_cast<std::size_t>(set)], outputs);
    if (checked.passed) return testing::AssertionSuccess();
    return testing::AssertionFailure() << describe(problem_) << ": epoch " << number << " with inputs " << set
                                       << " has error " << checked.max_error << " in " << checked.worst;
  }

 private:
  Problem problem_;
  std::vector<std::unique_ptr<Inputs>> inputs_;
  std::map<std::pair<int, Role>, DeviceBuffer> bound_;
  std::map<std::tuple<int, Role, int>, DeviceBuffer> sources_;
  std::map<std::tuple<int, Role, int>, PinnedMemory> kept_;
};

/// One stream for each local rank.
class Streams {
 public:
  explicit Streams(World& world) : ranks_(world.local_ranks()) {
    for (const int rank : ranks_) {
      const DeviceGuard guard(rank);
      streams_.emplace_back();
      handles_.push_back(streams_.back().get());
    }
  }
  std::span<void* const> handles() const { return handles_; }
  /// Calls action(rank, stream of the rank) for each rank, with its device current.
  template <class Action>
  void each(Action action) const {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const DeviceGuard guard(ranks_[i]);
      action(ranks_[i], streams_[i].get());
    }
  }
  /// Waits for all streams; false after a minute.
  bool wait() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (const Stream& stream : streams_)
      while (!stream.idle()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    return true;
  }

 private:
  std::vector<int> ranks_;
  std::vector<Stream> streams_;
  std::vector<void*> handles_;
};

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace shingle::cuda::test
