#include "engine.hpp"

#include "diagnosis.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {

Engine::Engine(std::shared_ptr<WorldState> shared, const Plan& executed, std::shared_ptr<HostArena> arena)
    : world(std::move(shared)),
      plan(executed),
      memory(plan, world->local_ranks, std::move(arena)),
      counters(plan.ranks.size()),
      progress(plan),
      first_epoch(world->options.first_epoch) {
  for (const int rank : world->local_ranks)
    counters[static_cast<std::size_t>(rank)] = std::make_unique<CounterTable>(plan, rank, first_epoch);
  for (const int rank : world->local_ranks)
    for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
      for (const Step& step : lane.steps) {
        if (const auto* pass = std::get_if<Elementwise>(&step); pass && pass->queue >= 0)
          queues[{rank, pass->queue}] = 0;
        if (const auto* await = std::get_if<Await>(&step); await && lane.submission.prelaunched)
          polled.try_emplace({await->counter.counter, await->counter.rank}, Launchers::launcher(lane, rank));
      }
}

Clock::time_point Engine::prelaunch() {
  auto ready = Clock::now();
  if (!world->launchers.phases().paced()) return ready;
  for (const int rank : world->local_ranks)
    for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
      if (lane.submission.prelaunched) ready = std::max(ready, world->launchers.submit(lane, rank));
  return ready;
}

void Engine::await(const Caller& caller, const CounterRef& counter, std::uint32_t target) {
  CounterTable& table = *counters[static_cast<std::size_t>(counter.rank)];
  const std::uint32_t base = caller.epoch * growth(plan, counter);
  if (table.await(counter.counter, counter.entry, base + target, health(), deadline())) return;
  throw Timeout(missing_adds(*this, caller, counter, target), caller.rank);
}

void Engine::notify(const Caller& caller, const CounterRef& counter, std::uint32_t value) {
  CounterTable& table = *counters[static_cast<std::size_t>(counter.rank)];
  if (plan.counters[static_cast<std::size_t>(counter.counter)].kind == CounterKind::add) {
    table.add(counter.counter, counter.entry, value);
  } else {
    table.raise(counter.counter, counter.entry, caller.epoch * growth(plan, counter) + value);
  }
}

}  // namespace shingle::host
