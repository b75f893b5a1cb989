#include "hand_overs.hpp"

#include <set>
#include <vector>

#include "plan/schedule.hpp"

namespace shingle::cuda {
namespace {

using At = std::pair<std::size_t, std::size_t>;  // lane and step

/// What looks at a count, and what makes it.
struct Uses {
  std::vector<At> notifies, awaits;
  std::vector<std::uint32_t> values, targets;
  bool others = false;  // other ranks, or engines
};

/// The place of every step in the rank's order of issue.
std::map<At, std::size_t> issued(const RankPlan& rank) {
  std::map<At, std::size_t> places;
  std::vector<std::size_t> next(rank.lanes.size(), 0);
  for (const std::int32_t lane : rank.issue) {
    const auto at = static_cast<std::size_t>(lane);
    places.emplace(At{at, next[at]++}, places.size());
  }
  return places;
}

}  // namespace

HandOvers::HandOvers(const Plan& plan, int rank) {
  if (plan.mechanism == Mechanism::copy_engine) return;  // whose lanes stand for threads of the host
  std::map<std::pair<std::int32_t, std::int32_t>, Uses> counts;
  std::set<std::int32_t> hooked;  // counters that tiles look at or make
  const auto use = [&](const CounterRef& at, bool own) -> Uses* {
    if (at.rank != rank) return nullptr;
    Uses& uses = counts[{at.counter, at.entry}];
    uses.others = uses.others || !own;
    return &uses;
  };
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (std::size_t lane = 0; lane < plan.ranks[r].lanes.size(); ++lane) {
      const Lane& of = plan.ranks[r].lanes[lane];
      const bool own = static_cast<int>(r) == rank && of.kind != LaneKind::copy;
      for (std::size_t step = 0; step < of.steps.size(); ++step) {
        const Step& one = of.steps[step];
        if (const auto* gates = gates_of(one))
          for (const TileGate& gate : *gates) hooked.insert(gate.counter);
        if (const auto* notifies = notifies_of(one))
          for (const TileNotify& notify : *notifies) hooked.insert(notify.counter);
        if (const auto* notify = std::get_if<Notify>(&one)) {
          if (Uses* const uses = use(notify->counter, own))
            uses->notifies.emplace_back(lane, step), uses->values.push_back(notify->value);
        } else if (const auto* await = std::get_if<Await>(&one)) {
          if (Uses* const uses = use(await->counter, own))
            uses->awaits.emplace_back(lane, step), uses->targets.push_back(await->target);
        }
      }
    }
  const std::map<At, std::size_t> places = issued(plan.ranks[static_cast<std::size_t>(rank)]);
  for (const auto& [count, uses] : counts) {
    if (uses.others || hooked.contains(count.first) || uses.notifies.size() != 1) continue;
    bool later = true;
    for (std::size_t i = 0; i < uses.awaits.size(); ++i)
      later = later && uses.targets[i] == uses.values.front() &&
              places.at(uses.awaits[i]) > places.at(uses.notifies.front());
    if (!later) continue;
    const Event* const event = &events_[count];
    steps_.emplace(uses.notifies.front(), event);
    for (const At& await : uses.awaits) steps_.emplace(await, event);
  }
}

const Event* HandOvers::event(std::size_t lane, std::size_t step) const {
  const auto found = steps_.find({lane, step});
  return found == steps_.end() ? nullptr : found->second;
}

}  // namespace shingle::cuda
