#include "graph_fitness.hpp"

#include <algorithm>

#include "plan/steps.hpp"

namespace shingle {
namespace {

bool notifies(const Step& step) {
  const auto* const hooks = notifies_of(step);
  return std::holds_alternative<Notify>(step) || (hooks != nullptr && !hooks->empty());
}

/// Returns true if somebody waits for a copy of the lane: another rank, or a step that awaits a later notify.
bool is_copied_for_others(const Lane& lane) {
  bool copied = false;
  for (const Step& step : lane.steps) {
    const auto* const copy = std::get_if<Copy>(&step);
    if (copy != nullptr && copy->from.rank == copy->to.rank)
      copied = true;
    else if (copy != nullptr || std::holds_alternative<Broadcast>(step) ||
             std::holds_alternative<Swap>(step) || (copied && notifies(step)))
      return true;
  }
  return false;
}

/// The number of such lanes, of the rank that has most.
std::ptrdiff_t most_copying_lanes(const Plan& plan) {
  std::ptrdiff_t most = 0;
  for (const RankPlan& rank : plan.ranks)
    most = std::max(most, std::ranges::count_if(rank.lanes, is_copied_for_others));
  return most;
}

/// Returns true if a copy lane waits for kernels of its rank after a copy. A graph could put the kernel of
/// such a wait before those kernels in one queue: they would wait for each other.
bool waits_behind_copies(const Plan& plan, const Lane& lane) {
  if (lane.kind != LaneKind::copy) return false;
  bool copied = false;
  for (const Step& step : lane.steps) {
    const auto* const await = std::get_if<Await>(&step);
    if (copied && await != nullptr &&
        plan.counters[static_cast<std::size_t>(await->counter.counter)].kind == CounterKind::add)
      return true;
    copied = copied || is_command(step);
  }
  return false;
}

}  // namespace

std::string unfit_for_graph(const Plan& plan) {
  // A graph may put the copies of all its branches into one queue of the engine, in its own order: a copy
  // that waits would hold up the one that it waits for. Streams keep the plan's order of issue.
  if (most_copying_lanes(plan) > 1)
    return "several lanes of the plan copy, which in a graph could hold each other up";
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes) {
      if (lane.kind == LaneKind::host) return "threads of the host take their turn between lanes of the plan";
      if (waits_behind_copies(plan, lane))
        return "a lane that copies waits for others again, which in a graph could hold each other up";
    }
  return {};
}

}  // namespace shingle
