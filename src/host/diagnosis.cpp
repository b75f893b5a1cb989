#include "diagnosis.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "shingle/plan/print.hpp"

namespace shingle::host {
namespace {

/// Whether a tiled step's hook adds to this count.
bool adds(const std::vector<TileNotify>& hooks, const CounterRef& to) {
  return std::ranges::any_of(hooks, [&](const TileNotify& hook) {
    return hook.counter == to.counter && static_cast<std::size_t>(to.entry) < hook.ends.size() &&
           std::ranges::find(hook.ranks, to.rank) != hook.ranks.end();
  });
}

bool adds(const Step& step, const CounterRef& to) {
  if (const auto* notify = std::get_if<Notify>(&step)) return notify->counter == to;
  if (const auto* gemm = std::get_if<Gemm>(&step)) return adds(gemm->notify, to);
  if (const auto* pass = std::get_if<Elementwise>(&step)) return adds(pass->notify, to);
  return false;
}

bool meets(const Step& step, std::int32_t communicator) {
  if (const auto* collective = std::get_if<Collective>(&step)) return collective->communicator == communicator;
  if (const auto* exchange = std::get_if<Exchange>(&step)) return exchange->communicator == communicator;
  return false;
}

bool local(const Engine& engine, int rank) {
  return std::ranges::find(engine.world->local_ranks, rank) != engine.world->local_ranks.end();
}

/// "it is at step 2 (await), epoch 0": where a lane stands, if that can be seen from here.
std::string stands(const Engine& engine, int rank, int lane) {
  if (!local(engine, rank)) return "its process does not say where it is";
  const Progress::Position at = engine.progress.position(rank, lane);
  const auto steps = static_cast<std::int32_t>(engine.plan.ranks[static_cast<std::size_t>(rank)].lanes[static_cast<std::size_t>(lane)].steps.size());
  if (at.step >= steps) return fmt::format("it has finished epoch {}", at.epoch);
  return "it is at " + describe(engine, {rank, lane, at.step, at.epoch});
}

std::string waited(const Engine& engine, const Caller& caller) {
  return fmt::format("{}: waited {} for", describe(engine, caller), format_us(engine.timeout_us));
}

}  // namespace

std::string describe(const Engine& engine, const Caller& caller) {
  return fmt::format("{}, epoch {}", where(engine.plan, caller.rank, caller.lane, caller.step), caller.epoch);
}

std::string missing_adds(const Engine& engine, const Caller& caller, const CounterRef& counter, std::uint32_t seen,
                         std::uint32_t target) {
  std::vector<std::string> lines;
  std::set<int> ranks;
  for (int rank = 0; rank < static_cast<int>(engine.plan.ranks.size()); ++rank) {
    const RankPlan& plan = engine.plan.ranks[static_cast<std::size_t>(rank)];
    for (int lane = 0; lane < static_cast<int>(plan.lanes.size()); ++lane) {
      const auto& steps = plan.lanes[static_cast<std::size_t>(lane)].steps;
      for (int step = 0; step < static_cast<int>(steps.size()); ++step) {
        if (!adds(steps[static_cast<std::size_t>(step)], counter)) continue;
        if (local(engine, rank) && engine.progress.position(rank, lane) > Progress::Position{caller.epoch, step}) continue;
        ranks.insert(rank);
        lines.push_back(fmt::format("{} has not finished: {}", where(engine.plan, rank, lane, step), stands(engine, rank, lane)));
      }
    }
  }
  const std::string& table = engine.plan.counters[static_cast<std::size_t>(counter.counter)].name;
  std::string text = fmt::format("{} counter {}[{}] of rank {}: saw {}, target {}", waited(engine, caller), table,
                                 counter.entry, counter.rank, static_cast<std::int32_t>(seen), target);
  if (ranks.empty()) return text + "; every step that adds to it has finished";
  return text + fmt::format("; still to add: rank{} {}: {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "),
                            fmt::join(lines, "; "));
}

std::string missing_ranks(const Engine& engine, const Caller& caller, std::int32_t communicator, std::span<const int> missing) {
  std::vector<std::string> lines;
  for (const int rank : missing) {
    const RankPlan& plan = engine.plan.ranks[static_cast<std::size_t>(rank)];
    for (int lane = 0; lane < static_cast<int>(plan.lanes.size()); ++lane) {
      const auto& steps = plan.lanes[static_cast<std::size_t>(lane)].steps;
      if (std::ranges::any_of(steps, [&](const Step& step) { return meets(step, communicator); }))
        lines.push_back(fmt::format("rank {}: {}", rank, stands(engine, rank, lane)));
    }
  }
  return fmt::format("{} rank{} {} to come to communicator {}; {}", waited(engine, caller), missing.size() > 1 ? "s" : "",
                     fmt::join(missing, ", "), engine.plan.communicators[static_cast<std::size_t>(communicator)].name,
                     fmt::join(lines, "; "));
}

}  // namespace shingle::host
