#include "shingle/cotune/co_tuner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "api/overlap_runner.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::cli {
namespace {

using cotune::Method;

constexpr double measured_gain = 0.01;  // smaller gains are noise
constexpr std::size_t rounds = 7;

/// Measures the found configurations in turn, so that a drift of the machine affects all alike. The round
/// with the median time counts.
void compare(OverlapRunner& runner, Found& found) {
  std::vector<std::vector<cotune::Measurement>> samples(found.by.size());
  for (std::size_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < samples.size(); ++i)
      samples[i].push_back(runner.measure(found.by[i].second.configs));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::ranges::sort(samples[i], {}, &cotune::Measurement::makespan_us);
    found.by[i].second.measured = samples[i][rounds / 2];
  }
}

}  // namespace

CoTuner::CoTuner(const CotuneFlags& flags, const ProcessLaunch& launch) {
  if (!flags.machine.empty()) {
    machine_ = machine_from_spec(flags.machine);
    ranks_ = flags.where.world > 0 ? flags.where.world : std::max(machine_.ranks, 2);
    space_ = config_space(machine_);
    return;
  }
  world_ = make_world(flags.where.ranks(launch), flags.where.options(launch));
  machine_ = world_->machine();
  ranks_ = world_->size();
  // Threads and transports are the process's. Without the tuner plugin, so is all but channels.
  const cotune::Space all = config_space(machine_);
  const Capabilities can = world_->capabilities();
  space_.channels = all.channels;
  if (can.chunks) space_.chunk_bytes = all.chunk_bytes;
  if (can.algorithms)
    std::ranges::copy_if(all.subspaces, std::back_inserter(space_.subspaces), [](const cotune::Subspace& at) {
      return at.transport == Transport::automatic && at != cotune::Subspace{};
    });
  options_ = {.least_gain = measured_gain, .repeats = flags.repeat};
}

std::string CoTuner::title() const {
  return world_ ? fmt::format("measured on {} ranks, {}", ranks_, world_->backend())
                : fmt::format("predicted on {}", machine_.name);
}

Found CoTuner::search(OverlapPattern pattern, bool exhaustive, const std::vector<int>& alike) const {
  std::vector<Method> methods{Method::library, Method::alone, Method::together};
  if (exhaustive) methods.insert(methods.begin() + 2, Method::exhaustive);
  Found found{std::move(pattern), {}};
  const Workload& workload = found.pattern.workload;
  if (!world_) {
    for (const Method method : methods) {
      // Predictions of the other axes gain nothing over NCCL's choice, and would be too many together.
      const cotune::Space& space = method == Method::exhaustive ? resource_space(machine_) : space_;
      found.by.emplace_back(method, co_tune(workload, machine_, method, space, options_, alike));
    }
    return found;
  }
  OverlapRunner runner(*world_, workload);
  const auto measure = [&](const std::vector<CollectiveConfig>& configs) { return runner.measure(configs); };
  for (const Method method : methods)
    found.by.emplace_back(method, co_tune(workload, measure, method, space_, options_, alike));
  compare(runner, found);
  return found;
}

}  // namespace shingle::cli
