#include "event_edges.hpp"

#include <set>
#include <utility>

#include "plan/steps.hpp"

namespace shingle {
namespace {

using At = std::pair<std::size_t, std::size_t>;  // lane and step

/// Notifies and awaits of a count on its rank.
struct Uses {
  std::vector<At> notifies, awaits;
  std::vector<std::uint32_t> values, targets;
  bool others = false;  // true if other ranks, copy engines or host threads use the count
};

/// Position of every step in the rank's issue order.
std::map<At, std::size_t> issued(const RankPlan& rank) {
  std::map<At, std::size_t> places;
  std::vector<std::size_t> next(rank.lanes.size(), 0);
  for (const std::int32_t lane : rank.issue) {
    const auto at = static_cast<std::size_t>(lane);
    places.emplace(At{at, next[at]++}, places.size());
  }
  return places;
}

bool follows_groups(const Step& step) {
  const auto* pass = std::get_if<Elementwise>(&step);
  return pass != nullptr && by_groups(*pass);
}

}  // namespace

EventEdges::EventEdges(const Plan& plan) : sizes_(plan.ranks.size(), 0) {
  std::map<Key, Uses> counts;
  std::set<std::int32_t> hooked;  // counters that gates or tile notifies use
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (std::size_t lane = 0; lane < plan.ranks[r].lanes.size(); ++lane) {
      const Lane& of = plan.ranks[r].lanes[lane];
      const auto rank = static_cast<std::int32_t>(r);
      const auto use = [&](const CounterRef& at) -> Uses& {
        Uses& uses = counts[{at.rank, at.counter, at.entry}];
        uses.others =
            uses.others || at.rank != rank || of.kind == LaneKind::copy || of.kind == LaneKind::host;
        return uses;
      };
      for (std::size_t i = 0; i < of.steps.size(); ++i) {
        const Step& step = of.steps[i];
        const auto await = [&](const CounterRef& at, std::uint32_t target) {
          Uses& uses = use(at);
          uses.awaits.emplace_back(lane, i), uses.targets.push_back(target);
        };
        if (const auto* wait = std::get_if<Await>(&step)) await(wait->counter, wait->target);
        if (const auto* notify = std::get_if<Notify>(&step)) {
          Uses& uses = use(notify->counter);
          uses.notifies.emplace_back(lane, i), uses.values.push_back(notify->value);
        }
        if (follows_groups(step)) {
          const TileGate& gate = gates_of(step)->front();
          for (const GroupOfItems& items : awaited_groups(std::get<Elementwise>(step)))
            await({gate.counter, rank, gate.entry(items.group)},
                  gate.targets[static_cast<std::size_t>(items.group)]);
        } else if (const auto* gates = gates_of(step)) {
          for (const TileGate& gate : *gates) hooked.insert(gate.counter);
        }
        if (const auto* notifies = notifies_of(step))
          for (const TileNotify& tiles : *notifies) hooked.insert(tiles.counter);
      }
    }
  std::vector<std::map<At, std::size_t>> places;
  for (const RankPlan& rank : plan.ranks) places.push_back(issued(rank));
  for (const auto& [count, uses] : counts) {
    const auto& [rank, counter, entry] = count;
    if (uses.others || hooked.contains(counter) || uses.notifies.size() != 1 || uses.awaits.empty()) continue;
    const auto& place = places[static_cast<std::size_t>(rank)];
    bool later = true;
    for (std::size_t i = 0; i < uses.awaits.size(); ++i)
      later = later && uses.targets[i] == uses.values.front() &&
              place.at(uses.awaits[i]) > place.at(uses.notifies.front());
    if (later) counts_.emplace(count, sizes_[static_cast<std::size_t>(rank)]++);
  }
}

int EventEdges::of(const CounterRef& count) const {
  const auto found = counts_.find({count.rank, count.counter, count.entry});
  return found == counts_.end() ? none : found->second;
}

int EventEdges::of(const Step& step) const {
  if (const auto* notify = std::get_if<Notify>(&step)) return of(notify->counter);
  if (const auto* await = std::get_if<Await>(&step)) return of(await->counter);
  return none;
}

}  // namespace shingle
