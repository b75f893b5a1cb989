#include "graph_fitness.hpp"

#include <algorithm>

#include "plan/steps.hpp"

namespace shingle {
namespace {

bool notifies(const Step& step) {
  const auto* const hooks = notifies_of(step);
  return std::holds_alternative<Notify>(step) || (hooks != nullptr && !hooks->empty());
}

/// True if another step waits for a copy of the lane: a step of another rank, or one that awaits a later
/// notify.
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

/// Max over ranks of the number of these lanes.
std::ptrdiff_t most_copying_lanes(const Plan& plan) {
  std::ptrdiff_t most = 0;
  for (const RankPlan& rank : plan.ranks)
    most = std::max(most, std::ranges::count_if(rank.lanes, is_copied_for_others));
  return most;
}

/// True if a copy lane waits for kernels of its rank after a copy. A graph could put the waiting kernel
/// before those kernels in one queue, which is a deadlock.
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
  // A graph may put the copies of all branches into one engine queue, in any order. A copy that waits could
  // then block the copy that it waits for. Streams keep the plan's issue order.
  if (most_copying_lanes(plan) > 1)
    return "several lanes of the plan copy, and in a graph their copies could block each other";
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes) {
      if (lane.kind == LaneKind::host) return "the plan has host lanes, which a graph cannot run";
      if (waits_behind_copies(plan, lane))
        return "a copy lane waits between copies, and in a graph such copies could block each other";
    }
  return {};
}

}  // namespace shingle
