#include "submission.hpp"

#include <algorithm>

namespace shingle::cuda {
namespace {

bool notifies(const Step& step) {
  const auto* const gemm = std::get_if<Gemm>(&step);
  const auto* const pass = std::get_if<Elementwise>(&step);
  return std::holds_alternative<Notify>(step) || (gemm != nullptr && !gemm->notify.empty()) ||
         (pass != nullptr && !pass->notify.empty());
}

/// Whether somebody waits for a copy of the lane: another rank, or who awaits what the lane counts behind it.
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

/// Lanes of a rank that copy what others wait for, of the rank that has most.
std::size_t most_copying_lanes(const Plan& plan) {
  std::ptrdiff_t most = 0;
  for (const RankPlan& rank : plan.ranks)
    most = std::max(most, std::ranges::count_if(rank.lanes, is_copied_for_others));
  return static_cast<std::size_t>(most);
}

/// Whether a copy lane waits for kernels of its rank behind a copy. In a graph the kernel of such a wait
/// could come before those in one queue, and they behind it.
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
  // A graph may put the copies of all its branches into one queue of the engine, in an order of its own: one
  // that waits would hold up what it waits for. Streams have the plan's order of issue.
  if (most_copying_lanes(plan) > 1)
    return "several lanes of the plan copy, which in a graph could hold each other up";
  if (plan.mechanism == Mechanism::copy_engine && plan.params.trigger == Trigger::host)
    return "threads of the host take their turn between lanes of the plan";
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      if (waits_behind_copies(plan, lane))
        return "a lane that copies waits for others again, which in a graph could hold each other up";
  return {};
}

bool submits(const Plan& plan) {
  return plan.mechanism == Mechanism::copy_engine && !plan.params.prelaunch;
}

}  // namespace shingle::cuda
