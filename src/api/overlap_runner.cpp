#include "overlap_runner.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <thread>

#include "tune/co_tuning.hpp"
#include "workspace.hpp"

namespace shingle {
namespace {

constexpr double most_epochs = 50, timeout_us = 30e6;
constexpr std::size_t most_kept = 8;  // each has its own streams and graphs

}  // namespace

struct OverlapRunner::State {
  State(World& on, const Workload& measured)
      : world(on), workload(measured), inputs(random_inputs(measured, 0)), memory(on, *inputs) {}

  Result<Plan> plan(const std::vector<CollectiveConfig>& configs) const {
    return make_plan(workload, world.machine(), ChunkedParams{.configs = configs});
  }
  /// The operator of a plan, made at the first request.
  Operator& operator_of(Plan plan) {
    const std::vector<CollectiveConfig> configs = std::get<ChunkedParams>(params_of(plan)).configs;
    if (const auto found = ready.find(configs); found != ready.end()) return found->second;
    if (ready.size() == most_kept) ready.clear();
    Operator made(world, std::move(plan), timeout_us);
    memory.bind(made);
    made.run();  // makes communicators, loads kernels
    return ready.emplace(configs, std::move(made)).first->second;
  }

  World& world;
  Workload workload;
  std::unique_ptr<Inputs> inputs;
  Workspace memory;
  std::map<std::vector<CollectiveConfig>, Operator> ready;
};

OverlapRunner::OverlapRunner(World& world, const Workload& workload)
    : state_(std::make_unique<State>(world, workload)) {}
OverlapRunner::~OverlapRunner() = default;

cotune::Measurement OverlapRunner::measure(const std::vector<CollectiveConfig>& configs) {
  Result<Plan> plan = state_->plan(configs);
  if (!plan) return {.makespan_us = std::numeric_limits<double>::infinity()};
  World& world = state_->world;
  Operator& op = state_->operator_of(std::move(*plan));
  const Timing timing = world.capabilities().timing;
  const auto run = [&](int epochs, bool trace) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(timing.rest_us));
    return op.run(epochs, trace);
  };
  const RunReport traced = run(1, true);
  const double once_us = world.all_max({traced.elapsed_us})[0];
  const auto epochs = static_cast<int>(std::clamp(std::ceil(timing.run_us / once_us), 1.0, most_epochs));
  const double us = world.all_max({run(epochs, false).elapsed_us})[0] / epochs;
  cotune::Measurement measured = measurement_of(op.plan(), traced.spans, us);
  measured.compute_us = world.all_max({measured.compute_us})[0];
  measured.communication_us = world.all_max(std::move(measured.communication_us));
  return measured;
}

}  // namespace shingle
