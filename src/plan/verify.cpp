// The rules in the order in which they build on each other; docs/proofs.md argues why they are enough.
#include "shingle/plan/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "memory_check.hpp"
#include "order.hpp"
#include "schedule.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/plan/wellformed.hpp"

namespace shingle {
namespace {

using Failure = std::optional<std::string>;

/// Workers that a step holds while it waits for others; 0 for a step that runs to completion once it has started.
std::int32_t blocking_workers(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return gemm->gates.empty() ? 0 : gemm->resources.least;
  if (const auto* pass = std::get_if<Elementwise>(&step)) return pass->gates.empty() ? 0 : pass->resources.least;
  if (const auto* collective = std::get_if<Collective>(&step)) return collective->resources.least;
  if (const auto* exchange = std::get_if<Exchange>(&step)) return exchange->resources.least;
  return 0;
}

/// Workers without which a step that runs to completion cannot start.
std::int32_t completing_workers(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return gemm->gates.empty() ? gemm->resources.least : 0;
  if (const auto* pass = std::get_if<Elementwise>(&step)) return pass->gates.empty() ? pass->resources.least : 0;
  return 0;
}

/// Rule 2: whatever is waiting, what others wait for finds workers. Steps of one lane never run together, those of the
/// adjacent epoch included, so that a lane counts with its largest step.
Failure check_residency(const Plan& plan) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto& lanes = plan.ranks[r].lanes;
    std::vector<std::int64_t> blocking(lanes.size(), 0);
    std::int64_t all = 0;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      for (const Step& step : lanes[l].steps) blocking[l] = std::max<std::int64_t>(blocking[l], blocking_workers(step));
      all += blocking[l];
    }
    if (all > plan.workers)
      return fmt::format("rank {}: steps that wait hold {} workers when all lanes do, but there are {}", r, all, plan.workers);
    for (std::size_t l = 0; l < lanes.size(); ++l)
      for (std::size_t s = 0; s < lanes[l].steps.size(); ++s) {
        const std::int64_t needed = completing_workers(lanes[l].steps[s]) + all - blocking[l];
        if (needed > plan.workers)
          return fmt::format("{} needs {} workers beside those that waiting steps of other lanes hold ({}), but there are {}",
                             where(plan, static_cast<int>(r), static_cast<int>(l), static_cast<int>(s)),
                             completing_workers(lanes[l].steps[s]), all - blocking[l], plan.workers);
      }
  }
  return std::nullopt;
}

/// Rule 3, the part that needs no run: one lane a communicator a rank, and an order of the collectives of all
/// communicators that every rank follows.
Failure check_collectives(const Plan& plan) {
  using Call = std::pair<std::int32_t, std::int32_t>;  // communicator, how many before it
  std::map<Call, std::vector<Call>> next;
  std::map<Call, int> before;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const RankPlan& rank = plan.ranks[r];
    std::map<std::int32_t, std::int32_t> lane_of, calls;
    std::vector<std::size_t> at(rank.lanes.size(), 0);
    std::optional<Call> last;
    for (const std::int32_t lane : rank.issue) {
      const auto* collective = std::get_if<Collective>(&rank.lanes[lane].steps[at[lane]++]);
      if (!collective) continue;
      const auto [found, first] = lane_of.emplace(collective->communicator, lane);
      if (!first && found->second != lane)
        return fmt::format("rank {}: lanes {} and {} both use communicator {}", r, rank.lanes[found->second].name,
                           rank.lanes[lane].name, plan.communicators[collective->communicator].name);
      const Call call{collective->communicator, calls[collective->communicator]++};
      before.emplace(call, 0);
      if (last) {
        next[*last].push_back(call);
        ++before[call];
      }
      last = call;
    }
  }
  std::vector<Call> ready;
  for (const auto& [call, count] : before)
    if (count == 0) ready.push_back(call);
  std::size_t done = 0;
  while (!ready.empty()) {
    const Call call = ready.back();
    ready.pop_back();
    ++done;
    for (const Call& other : next[call])
      if (--before[other] == 0) ready.push_back(other);
  }
  if (done == before.size()) return std::nullopt;
  for (const auto& [call, count] : before)
    if (count > 0)
      return fmt::format("ranks disagree on the order of collectives: call {} on communicator {} comes both before and after others",
                         call.second, plan.communicators[call.first].name);
  return std::nullopt;
}

/// Rule 6: what a counter says of itself is what happens, and no target ever leaves the range of a cyclic comparison.
Failure check_counters(const Plan& plan, const Schedule& schedule) {
  for (const CountHistory& count : schedule.counts) {
    if (count.at.counter < 0) continue;  // never used
    const Counter& counter = plan.counters[count.at.counter];
    const std::int64_t growth = counter.growth[count.at.rank][count.at.entry];
    const std::string name = fmt::format("counter {}[{}] on rank {}", counter.name, count.at.entry, count.at.rank);
    std::vector<std::int64_t> grown(schedule.epochs, 0);
    const Segment* writer = nullptr;
    for (const Signal& add : count.adds) {
      const Segment& s = schedule.segments[add.segment];
      if (counter.kind == CounterKind::add) {
        grown[s.epoch] += add.amount;
        continue;
      }
      grown[s.epoch] = std::max(grown[s.epoch], add.amount - s.epoch * growth);
      if (writer && writer->line != s.line)
        return fmt::format("{} is set by {} and by {}: a set counter has one writer", name,
                           where(plan, writer->rank, writer->lane, writer->step), where(plan, s.rank, s.lane, s.step));
      writer = &s;
    }
    for (const std::int64_t sum : grown)
      if (sum != growth) return fmt::format("{} declares to grow by {} an epoch, but grows by {}", name, growth, sum);
    for (const Signal& await : count.awaits) {
      const Segment& s = schedule.segments[await.segment];
      if (await.amount - s.epoch * growth > growth)
        return fmt::format("{} awaits {} of {}, which grows by {} an epoch", where(plan, s.rank, s.lane, s.step),
                           await.amount - s.epoch * growth, name, growth);
    }
    if (growth * 2 >= std::int64_t{1} << 31) return fmt::format("{} grows by {} an epoch, too much for a 32-bit count", name, growth);
  }
  return std::nullopt;
}

Proof failed(std::string rule, std::string failure) {
  Proof proof;
  proof.ok = false;
  proof.rule = std::move(rule);
  proof.failure = std::move(failure);
  return proof;
}

}  // namespace

Proof verify(const Plan& plan) {
  if (auto wrong = malformed(plan)) return failed("well-formed", *wrong);
  if (auto wrong = check_residency(plan)) return failed("residency", *wrong);
  if (auto wrong = check_collectives(plan)) return failed("collectives", *wrong);
  std::int32_t depth = 1;
  for (const Buffer& buffer : plan.buffers) depth = std::max(depth, buffer.depth);

  const Schedule schedule = run_greedily(plan, depth + 2, false);
  if (!schedule.mismatch.empty()) return failed("collectives", schedule.mismatch);
  if (auto wrong = check_counters(plan, schedule); wrong && schedule.stuck.empty()) return failed("counters", *wrong);
  if (!schedule.stuck.empty()) return failed("progress", schedule.stuck);
  if (const Schedule queued = run_greedily(plan, depth + 2, true); !queued.stuck.empty())
    return failed("hardware queue", queued.stuck);

  const Order order(plan, schedule);
  MemoryCheck memory(plan, schedule, order);
  if (auto wrong = memory.run()) return failed(wrong->rule, wrong->text);
  Proof proof;
  proof.segments = static_cast<std::int64_t>(schedule.segments.size());
  proof.accesses = memory.accesses();
  proof.epochs = schedule.epochs;
  return proof;
}

}  // namespace shingle
