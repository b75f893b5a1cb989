#include "ready_plans.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shingle {

std::size_t ReadyPlans::Hash::operator()(const Key& key) const {
  std::uint64_t word = (static_cast<std::uint64_t>(key.op) << 41) ^ (static_cast<std::uint64_t>(key.m) << 1) ^
                       (key.in_graph ? 1 : 0);
  for (const std::int64_t length : key.lengths) word = word * 31 + static_cast<std::uint64_t>(length);
  return std::hash<std::uint64_t>{}(word);
}

ReadyPlan* ReadyPlans::find(int op, const Problem& problem, bool in_graph) {
  const auto [first, last] = by_key_.equal_range(key_of(op, problem, in_graph));
  const auto found = std::find_if(first, last, [&](const auto& at) {
    return !problem.routing || at.second->problem == problem;  // m does not tell the routing
  });
  return found == last ? nullptr : &use(found->second);
}

ReadyPlan& ReadyPlans::add(ReadyPlan made) {
  forget_oldest();
  ready_.push_front(std::move(made));
  const ReadyPlan& added = ready_.front();
  by_key_.emplace(key_of(added.op, added.problem, added.in_graph), ready_.begin());
  return ready_.front();
}

void ReadyPlans::forget_oldest() {
  std::size_t kept = 0;
  auto oldest = ready_.end();
  for (auto at = ready_.begin(); at != ready_.end(); ++at)
    if (!at->executable->captured()) oldest = at, ++kept;
  if (kept < most_) return;
  const auto [first, last] = by_key_.equal_range(key_of(oldest->op, oldest->problem, oldest->in_graph));
  by_key_.erase(std::find_if(first, last, [&](const auto& at) { return at.second == oldest; }));
  ready_.erase(oldest);
}

void ReadyPlans::clear() {
  by_key_.clear();
  for (auto at = ready_.begin(); at != ready_.end();) {
    const auto next = std::next(at);
    if (at->executable->captured()) held_.splice(held_.end(), ready_, at);
    at = next;
  }
  ready_.clear();
}

void ReadyPlans::synchronize() {
  for (Plans* plans : {&ready_, &held_})
    for (ReadyPlan& at : *plans) at.executable->synchronize();
}

}  // namespace shingle
