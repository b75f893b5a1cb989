#include "diagnosis.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "backend/neighbours.hpp"
#include "plan/adders.hpp"
#include "shingle/plan/print.hpp"

namespace shingle::host {
namespace {

/// Why a lane is blocked, and the lanes that it waits for.
struct Cause {
  std::string text;
  std::vector<std::pair<int, int>> lanes;  // rank, lane
};

template <class T>
const T& at(const std::vector<T>& list, int index) {
  return list[static_cast<std::size_t>(index)];
}

const std::vector<Step>& steps_of(const Engine& engine, int rank, int lane) {
  return at(at(engine.plan.ranks, rank).lanes, lane).steps;
}

bool local(const Engine& engine, int rank) {
  return std::ranges::find(engine.world->local_ranks, rank) != engine.world->local_ranks.end();
}

bool meets(const Step& step, std::int32_t communicator) {
  if (const auto* collective = std::get_if<Collective>(&step))
    return collective->communicator == communicator;
  if (const auto* exchange = std::get_if<Exchange>(&step)) return exchange->communicator == communicator;
  return false;
}

std::uint32_t seen_in_epoch(const Engine& engine, const CounterRef& counter, std::uint32_t epoch) {
  return at(engine.counters, counter.rank)->value(counter.counter, counter.entry) -
         epoch * growth(engine.plan, counter);
}

/// Names the ranks that have not yet added to a count in this epoch.
Cause cause_of_count(const Engine& engine, const CounterRef& counter, std::uint32_t epoch,
                     std::uint32_t target) {
  Cause cause;
  std::set<int> ranks;
  for (int rank = 0; rank < static_cast<int>(engine.plan.ranks.size()); ++rank)
    for (int lane = 0; lane < static_cast<int>(at(engine.plan.ranks, rank).lanes.size()); ++lane) {
      const auto& steps = steps_of(engine, rank, lane);
      for (int step = 0; step < static_cast<int>(steps.size()); ++step) {
        if (!adds(at(steps, step), counter)) continue;
        if (local(engine, rank) && engine.progress.position(rank, lane) > Progress::Position{epoch, step})
          continue;
        ranks.insert(rank);
        if (std::ranges::find(cause.lanes, std::pair{rank, lane}) == cause.lanes.end())
          cause.lanes.emplace_back(rank, lane);
      }
    }
  cause.text = fmt::format("counter {}[{}] of rank {}: saw {}, target {}",
                           at(engine.plan.counters, counter.counter).name, counter.entry, counter.rank,
                           static_cast<std::int32_t>(seen_in_epoch(engine, counter, epoch)), target);
  cause.text += ranks.empty() ? "; every step that adds to it is done"
                              : fmt::format("; still to add: rank{} {}", ranks.size() > 1 ? "s" : "",
                                            fmt::join(ranks, ", "));
  return cause;
}

/// Names the ranks that have not reached a rendezvous.
Cause cause_of_meeting(const Engine& engine, std::int32_t communicator, std::span<const int> missing) {
  Cause cause;
  cause.text = fmt::format("rank{} {} to come to communicator {}", missing.size() > 1 ? "s" : "",
                           fmt::join(missing, ", "), at(engine.plan.communicators, communicator).name);
  for (const int rank : missing)
    for (int lane = 0; lane < static_cast<int>(at(engine.plan.ranks, rank).lanes.size()); ++lane)
      if (std::ranges::any_of(steps_of(engine, rank, lane),
                              [&](const Step& step) { return meets(step, communicator); }))
        cause.lanes.emplace_back(rank, lane);
  return cause;
}

/// Names the first group of tiles whose gate is still closed.
Cause cause_of_gates(const Engine& engine, const Caller& caller, const std::vector<TileGate>& gates) {
  for (const TileGate& gate : gates)
    for (int group = 0; group < static_cast<int>(gate.targets.size()); ++group) {
      const CounterRef counter{gate.counter, caller.rank, gate.entry(group)};
      if (at(gate.targets, group) > 0 &&
          !reached(seen_in_epoch(engine, counter, caller.epoch), at(gate.targets, group)))
        return cause_of_count(engine, counter, caller.epoch, at(gate.targets, group));
    }
  return {};
}

/// What a local lane waits for, as far as the plan, the counters and the transport show. Empty if it waits
/// for nothing.
Cause cause_of(const Engine& engine, const Caller& caller) {
  const auto& steps = steps_of(engine, caller.rank, caller.lane);
  if (caller.step >= static_cast<int>(steps.size())) {
    Cause cause{"the other lanes of its rank", {}};
    for (int lane = 0; lane < static_cast<int>(at(engine.plan.ranks, caller.rank).lanes.size()); ++lane)
      if (lane != caller.lane) cause.lanes.emplace_back(caller.rank, lane);
    return cause;
  }
  const Step& step = at(steps, caller.step);
  if (const auto* await = std::get_if<Await>(&step)) {
    if (reached(seen_in_epoch(engine, await->counter, caller.epoch), await->target)) return {};
    return cause_of_count(engine, await->counter, caller.epoch, await->target);
  }
  if (const auto* gemm = std::get_if<Gemm>(&step)) return cause_of_gates(engine, caller, gemm->gates);
  if (const auto* pass = std::get_if<Elementwise>(&step)) return cause_of_gates(engine, caller, pass->gates);
  if (const auto* attend = std::get_if<Attend>(&step)) return cause_of_gates(engine, caller, attend->gates);
  if (const auto* merge = std::get_if<Merge>(&step)) return cause_of_gates(engine, caller, merge->gates);
  if (const auto* back = std::get_if<AttendBackward>(&step))
    return cause_of_gates(engine, caller, back->gates);
  for (std::int32_t c = 0; c < static_cast<std::int32_t>(engine.plan.communicators.size()); ++c)
    if (meets(step, c))
      if (const auto missing = engine.transport->missing(c, caller.rank); !missing.empty())
        return cause_of_meeting(engine, c, missing);
  return {};
}

Caller position_of(const Engine& engine, int rank, int lane) {
  const Progress::Position position = engine.progress.position(rank, lane);
  return {rank, lane, position.step, position.epoch};
}

/// Follows the causes from lane to lane, down to lanes that wait for nobody: these have stalled or still
/// compute.
std::string diagnose(const Engine& engine, const Caller& caller, const Cause& first) {
  constexpr std::size_t most_lanes = 16;
  std::string text =
      fmt::format("{}: waited {} for {}", describe(engine, caller), format_us(engine.timeout_us), first.text);
  std::vector<std::pair<int, int>> lanes = first.lanes;
  for (std::size_t i = 0; i < lanes.size() && i < most_lanes; ++i) {
    const auto [rank, lane] = lanes[i];
    if (!local(engine, rank)) {
      text += fmt::format("; rank {} is another process", rank);
      continue;
    }
    const Caller there = position_of(engine, rank, lane);
    const Cause next = cause_of(engine, there);
    text += fmt::format("; {} {}", describe(engine, there),
                        next.text.empty() ? "does not wait" : "waits for " + next.text);
    for (const auto& further : next.lanes)
      if (std::ranges::find(lanes, further) == lanes.end()) lanes.push_back(further);
  }
  return text + stopped_neighbours();
}

}  // namespace

std::string describe(const Engine& engine, const Caller& caller) {
  const Lane& lane = at(at(engine.plan.ranks, caller.rank).lanes, caller.lane);
  if (caller.step >= static_cast<int>(lane.steps.size()))
    return fmt::format("rank {}, lane {}, after epoch {},", caller.rank, lane.name, caller.epoch);
  return fmt::format("{}, epoch {}", where(engine.plan, caller.rank, caller.lane, caller.step), caller.epoch);
}

std::string standing(const Engine& engine) {
  std::vector<std::string> lines;
  for (const int rank : engine.world->local_ranks)
    for (int lane = 0; lane < static_cast<int>(at(engine.plan.ranks, rank).lanes.size()); ++lane) {
      const Caller there = position_of(engine, rank, lane);
      if (const Cause cause = cause_of(engine, there); !cause.text.empty())
        lines.push_back(fmt::format("{} waits for {}", describe(engine, there), cause.text));
    }
  return fmt::format("{}", fmt::join(lines, "; "));
}

std::string missing_adds(const Engine& engine, const Caller& caller, const CounterRef& counter,
                         std::uint32_t target) {
  return diagnose(engine, caller, cause_of_count(engine, counter, caller.epoch, target));
}

std::string missing_ranks(const Engine& engine, const Caller& caller, std::int32_t communicator,
                          std::span<const int> missing) {
  return diagnose(engine, caller, cause_of_meeting(engine, communicator, missing));
}

}  // namespace shingle::host
