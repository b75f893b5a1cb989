#include "adders.hpp"

#include <algorithm>

#include "steps.hpp"

namespace shingle {
namespace {

bool adds(const TileNotify& hook, const CounterRef& to) {
  if (hook.counter != to.counter) return false;
  bool found = false;
  for (std::int64_t group = 0; group < static_cast<std::int64_t>(hook.ends.size()) && !found; ++group)
    if (hook.entry(group) == to.entry)
      hook.for_each_rank(group, [&](std::int32_t rank) { found = found || rank == to.rank; });
  return found;
}

}  // namespace

bool adds(const Step& step, const CounterRef& to) {
  if (const auto* notify = std::get_if<Notify>(&step)) return notify->counter == to;
  const std::vector<TileNotify>* hooks = notifies_of(step);
  return hooks && std::ranges::any_of(*hooks, [&](const TileNotify& hook) { return adds(hook, to); });
}

std::vector<int> ranks_that_add(const Plan& plan, const CounterRef& to) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank)
    if (std::ranges::any_of(plan.ranks[static_cast<std::size_t>(rank)].lanes, [&](const Lane& lane) {
          return std::ranges::any_of(lane.steps, [&](const Step& step) { return adds(step, to); });
        }))
      ranks.push_back(rank);
  return ranks;
}

}  // namespace shingle
