// Measures the host cost of an operator: the time of one enqueue() that replays its graph, on an idle device
// and back to back. The time is divided by the ranks of this process. Also prints the memory that the
// operator holds, and its bound.
#include <CLI/CLI.hpp>
#include <chrono>

#include "../report.hpp"
#include "api/workspace.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/stream.hpp"
#include "shingle/api/operator.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "shingle/cuda/cuda.hpp"

using namespace shingle;

namespace {

constexpr double target_us = 15;
constexpr int burst = 8;

struct Streams {
  std::vector<cuda::Stream> owned;
  std::vector<void*> handles;

  explicit Streams(const World& world) {
    for (const int rank : world.local_ranks()) {
      const cuda::DeviceGuard guard(rank);
      handles.push_back(owned.emplace_back().get());
    }
  }
};

/// Host time of each of `count` calls, divided by the number of ranks.
void time_calls(Operator& operation, const Streams& streams, int count, bench::Samples& samples) {
  for (int i = 0; i < count; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    operation.enqueue(streams.handles);
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
    samples.us.push_back(us.count() / static_cast<double>(streams.handles.size()));
  }
  operation.synchronize();
}

void measure(World& world, const Problem& problem, Mechanism mechanism, int repeat, nlohmann::json& record) {
  if (!make_plan(problem, world.machine(), default_params(mechanism))) return;
  Operator operation(world, problem, {.params = default_params(mechanism)});
  const auto inputs = random_inputs(problem, 1);
  const Workspace workspace(world, *inputs);
  workspace.bind(operation);
  operation.prepare();
  const Streams streams(world);
  bench::Samples alone, together;
  time_calls(operation, streams, burst, alone);
  alone.us.clear();
  for (int i = 0; i < repeat; ++i) {
    time_calls(operation, streams, 1, alone);
    time_calls(operation, streams, burst, together);
  }
  const int rank = world.local_ranks().front();
  const auto bytes = static_cast<double>(operation.memory_bytes(rank));
  const double most =
      1.1 * static_cast<double>(problem.m * problem.n) * static_cast<double>(size_bytes(problem.dtype)) +
      (1 << 20);
  fmt::print(
      "{:<11} enqueue {:5.1f} us on an idle device, {:5.1f} us back to back (target {} us)  memory {} "
      "({:.2f} of 1.1 M N + 1 MiB)\n",
      name(mechanism), alone.median(), together.median(), target_us, format_bytes(bytes), bytes / most);
  record["rows"].push_back({{"mechanism", name(mechanism)},
                            {"problem", describe(problem)},
                            {"idle", alone.json()},
                            {"back_to_back", together.json()},
                            {"target_us", target_us},
                            {"memory_bytes", bytes},
                            {"of_memory_bound", bytes / most}});
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Host time of an operator that is enqueued on streams, and its memory, on GPUs");
  Problem problem;
  problem.op = Op::gemm_allreduce;
  problem.dtype = DType::bf16;
  problem.m = 4096, problem.n = 8192, problem.k = 1024;
  int ranks = 0, repeat = 200;
  std::string json;
  app.add_option("--world", ranks, "GPUs (0: all)")->capture_default_str();
  app.add_option("--m", problem.m)->capture_default_str();
  app.add_option("--n", problem.n)->capture_default_str();
  app.add_option("--k", problem.k)->capture_default_str();
  app.add_option("--repeat", repeat)->capture_default_str();
  app.add_option("--json", json, "file for the record");
  CLI11_PARSE(app, argc, argv);

  try {
    const auto world = make_cuda_world(ranks);
    problem.world = world->size();
    auto record = bench::record(argc, argv);
    for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter}) {
      problem.op = op;
      fmt::print("{}\n", describe(problem));
      for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::chunked, Mechanism::signal})
        measure(*world, problem, mechanism, repeat, record);
    }
    bench::write(record, json);
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "bench_cuda_replay: {}\n", error.what());
    return 1;
  }
}
