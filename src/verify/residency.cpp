#include "residency.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "plan/steps.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {
namespace {

/// Null for steps without workers: awaits, notifies, and commands of copy engines.
const Resources* resources_of(const Step& step) {
  return std::visit(
      [](const auto& at) -> const Resources* {
        if constexpr (requires { at.resources; }) return &at.resources;
        return nullptr;
      },
      step);
}

bool is_call(const Step& step) {
  return std::holds_alternative<Collective>(step) || std::holds_alternative<Exchange>(step);
}

bool is_gated(const Step& step) {
  const std::vector<TileGate>* gates = gates_of(step);
  return gates != nullptr && !gates->empty();
}

/// Workers that a step may hold while it blocks: its maximum, because it gives none back before it ends. 0 if
/// the step runs to completion once it has started.
std::int64_t blocking_workers(const Plan& plan, const Step& step) {
  const Resources* const takes = resources_of(step);
  if (is_call(step)) return std::max(takes->least, takes->most);
  if (!is_gated(step)) return 0;
  return std::max(takes->least, takes->most > 0 ? takes->most : plan.workers);
}

/// Workers that a step needs to start, if it runs to completion.
std::int64_t completing_workers(const Step& step) {
  const Resources* const takes = resources_of(step);
  return takes == nullptr || is_call(step) || is_gated(step) ? 0 : std::max(takes->least, 1);
}

/// Workers of each lane's largest step, and their sum.
struct LaneWorkers {
  std::vector<std::int64_t> of_lane;
  std::int64_t all = 0;

  template <class WorkersOf>
  LaneWorkers(const RankPlan& rank, const WorkersOf& workers_of) {
    for (const Lane& lane : rank.lanes) {
      std::int64_t most = 0;
      for (const Step& step : lane.steps) most = std::max(most, workers_of(step));
      of_lane.push_back(most);
      all += most;
    }
  }
  /// Those of the other lanes.
  std::int64_t beside(std::size_t lane) const { return all - of_lane[lane]; }
};

}  // namespace

std::optional<std::string> unresident(const Plan& plan) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto& lanes = plan.ranks[r].lanes;
    const LaneWorkers blocked(plan.ranks[r], [&](const Step& step) { return blocking_workers(plan, step); });
    if (blocked.all > plan.workers)
      return fmt::format("rank {}: waiting steps of all lanes hold up to {} workers; the plan has {}", r,
                         blocked.all, plan.workers);
    for (std::size_t l = 0; l < lanes.size(); ++l)
      for (std::size_t s = 0; s < lanes[l].steps.size(); ++s)
        if (const std::int64_t needed = completing_workers(lanes[l].steps[s]);
            needed + blocked.beside(l) > plan.workers)
          return fmt::format(
              "{} needs {} workers while waiting steps of other lanes hold {}; the plan has {}",
              where(plan, static_cast<int>(r), static_cast<int>(l), static_cast<int>(s)), needed,
              blocked.beside(l), plan.workers);
  }
  return std::nullopt;
}

std::optional<std::string> starved_call(const Plan& plan) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto& lanes = plan.ranks[r].lanes;
    const LaneWorkers gated(plan.ranks[r], [&](const Step& step) -> std::int64_t {
      if (!is_gated(step) || waits_in_queue(step)) return 0;
      return std::min(blocking_workers(plan, step), grid_of(step)->positions());
    });
    for (std::size_t l = 0; l < lanes.size(); ++l)
      for (std::size_t s = 0; s < lanes[l].steps.size(); ++s)
        if (const Step& step = lanes[l].steps[s]; is_call(step) && resources_of(step)->least == 0 &&
                                                  gated.beside(l) > 0 && gated.beside(l) >= plan.workers)
          return fmt::format(
              "{} reserves no worker, while gated steps of other lanes may hold all {}: plan with a profile "
              "whose collective_workers is at least 1",
              where(plan, static_cast<int>(r), static_cast<int>(l), static_cast<int>(s)), plan.workers);
  }
  return std::nullopt;
}

}  // namespace shingle
