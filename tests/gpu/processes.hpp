// One process for each GPU, or several on one GPU. Each test of `GpuProcesses` starts its own program again,
// once for each rank. Those processes run a part of `GpuRank` together, which has no parts in the test
// itself.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "backend/launch.hpp"
#include "cuda/runtime/devices.hpp"
#include "shingle/plan/problem.hpp"
#include "support/free_port.hpp"

namespace shingle::test {

inline constexpr double deadline_us =
    15e6;  ///< of waits for other processes, which must also start within it

// -------------------------------------------------------------------------- in the processes of a world

inline Problem problem_of(Op op, int world) {
  Problem problem;
  problem.op = op;
  problem.world = world;
  problem.m = 1000;
  problem.n = 512;
  problem.k = 192;
  if (problem.traits().chains()) problem.inner = 320;
  problem.dtype = DType::bf16;
  if (!problem.traits().routes()) return problem;
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    for (int row = 0; row < problem.m - 300 * rank; ++row)
      dest[static_cast<std::size_t>(rank)].push_back((rank + row * row / 7) % world);
  problem.routing = std::make_shared<const Routing>(dest);
  return problem;
}

/// The device of a rank: processes share one if there are no others.
inline int device_of(int rank) {
  std::string why;
  return cuda::count_gpus(why) > 1 ? rank : 0;
}

struct Part {
  std::string name;
  void (*act)();
};
inline void PrintTo(const Part& part, std::ostream* out) {
  *out << part.name;
}

class GpuRank : public testing::TestWithParam<Part> {};

// ---------------------------------------------------------------------------------------- in the test itself

struct Outcome {
  int code = -1;  ///< exit code as in a shell: 128 + n after signal n
  std::string text;
  double seconds = 0;
};

inline Outcome run(const std::string& command) {
  Outcome outcome;
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  while (const std::size_t n = fread(part.data(), 1, part.size(), pipe)) outcome.text.append(part.data(), n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

/// Command that runs a part in this program, with a limit of two minutes.
/// SHINGLE_PART_SECONDS changes the limit.
inline std::string program(const std::string& part) {
  const char* const limit = std::getenv("SHINGLE_PART_SECONDS");
  return fmt::format("timeout -s KILL {} /proc/{}/exe --gtest_filter='*/{}'",
                     limit != nullptr ? limit : "120", getpid(), part);
}

/// Starts ranks of a world of `size` as plain processes, with torchrun's variables and `variables(rank)`.
inline std::vector<Outcome> launch(int size, const std::vector<int>& ranks, const std::string& part,
                                   const std::function<std::string(int rank)>& variables) {
  const int port = free_port();
  std::vector<std::future<Outcome>> running;
  for (const int rank : ranks)
    running.push_back(
        std::async(std::launch::async, run,
                   fmt::format("env RANK={} WORLD_SIZE={} MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {}", rank,
                               size, port, variables(rank), program(part))));
  std::vector<Outcome> outcomes;
  for (auto& one : running) outcomes.push_back(one.get());
  return outcomes;
}

/// Variables of ranks on one host. Where there is one GPU, the processes share it: NCCL refuses that unless
/// it takes them for processes of several hosts.
inline std::string on_one_host(int rank) {
  std::string why;
  if (cuda::count_gpus(why) > 1) return fmt::format("LOCAL_RANK={}", rank);
  return fmt::format(
      "LOCAL_RANK={} NCCL_HOSTID=host{} NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1", rank, rank);
}
class GpuProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (find_launcher().several()) GTEST_SKIP() << "this is a process of a world";
    std::string why;
    gpus = cuda::count_gpus(why);
    if (gpus < 1) GTEST_SKIP() << why;
  }
  int gpus = 0;
};

}  // namespace shingle::test
