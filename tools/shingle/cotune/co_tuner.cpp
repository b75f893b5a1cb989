#include "shingle/cotune/co_tuner.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "api/overlap_runner.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle::cli {
namespace {

using cotune::Method;

constexpr double measured_gain = 0.01;  // smaller gains are noise
constexpr std::size_t rounds = 7;

/// Measures configurations in turn, so that a drift of the machine affects all alike. The round with the
/// median time counts.
std::vector<cotune::Measurement> compared(OverlapRunner& runner,
                                          const std::vector<std::vector<CollectiveConfig>>& all) {
  std::vector<std::vector<cotune::Measurement>> samples(all.size());
  for (std::size_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) samples[i].push_back(runner.measure(all[i]));
  std::vector<cotune::Measurement> medians;
  for (auto& of : samples) {
    std::ranges::sort(of, {}, &cotune::Measurement::makespan_us);
    medians.push_back(of[rounds / 2]);
  }
  return medians;
}

/// Measures what was found again. The last method also gets what was predicted, if that is faster, and NCCL's
/// choice, which is the first, if nothing is.
void confirm(OverlapRunner& runner, Found& found, const std::vector<CollectiveConfig>& predicted) {
  std::vector<std::vector<CollectiveConfig>> all;
  for (const auto& [method, result] : found.by) all.push_back(result.configs);
  if (!predicted.empty()) all.push_back(predicted);
  const std::vector<cotune::Measurement> medians = compared(runner, all);
  for (std::size_t i = 0; i < found.by.size(); ++i) found.by[i].second.measured = medians[i];
  CoTuned& ours = found.by.back().second;
  const auto take = [&](std::size_t i) { ours.configs = all[i], ours.measured = medians[i]; };
  if (medians.back().makespan_us < ours.measured.makespan_us) take(medians.size() - 1);
  if (ours.measured.makespan_us > (1 - measured_gain) * medians.front().makespan_us) take(0);
}

}  // namespace

CoTuner::CoTuner(const CotuneFlags& flags, const ProcessLaunch& launch) {
  if (!flags.machine.empty()) {
    machine_ = machine_from_spec(flags.machine);
    ranks_ = flags.where.world > 0 ? flags.where.world : std::max(machine_.ranks, 2);
    // NCCL's tuner plugin can neither choose copy engines nor ask computations for anything.
    space_ = flags.table.empty() ? overlap_space(machine_) : config_space(machine_);
    options_.most = flags.most;
    return;
  }
  world_ = make_world(flags.where.ranks(launch), flags.where.options(launch));
  machine_ = world_->machine();
  ranks_ = world_->size();
  // Threads and transports are the process's. Without the tuner plugin, so is all but channels.
  const cotune::Space all = flags.table.empty() ? overlap_space(machine_) : config_space(machine_);
  const Capabilities can = world_->capabilities();
  space_.channels = all.channels;
  const auto is_served = [&](const cotune::Subspace& at) {
    if (at.transport == Transport::engines) return can.remote_memory;
    return can.algorithms && at.transport == Transport::automatic && at != cotune::Subspace{};
  };
  std::ranges::copy_if(all.subspaces, std::back_inserter(space_.subspaces), is_served);
  const bool engines = space_.subspaces.back().transport == Transport::engines;
  if (can.chunks || engines) space_.chunk_bytes = all.chunk_bytes;
  space_.spared = all.spared;
  space_.delay = all.delay;
  options_ = {.least_gain = measured_gain, .repeats = flags.repeat, .most = flags.most};
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
  confirm(runner, found, predicted(workload, alike));
  return found;
}

/// What simulation finds; nothing if the machine's profile lacks figures.
std::vector<CollectiveConfig> CoTuner::predicted(const Workload& workload,
                                                 const std::vector<int>& alike) const {
  try {
    return co_tune(workload, machine_, Method::together, space_, {}, alike).configs;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace shingle::cli
