#include "simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "plan/steps.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {

double Simulated::exposed_us() const {
  double least = makespan_us;
  for (const double us : computing_us) least = std::min(least, us);
  return makespan_us - least;
}

Simulated simulate(const Plan& plan, const Machine& machine, const SimOptions& options) {
  return sim::Simulation(plan, machine, options).run();
}

namespace sim {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t next_bits(std::uint64_t& state) {
  std::uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool works(const Step& step) {
  return !synchronises(step);
}

void check(const Plan& plan, const SimOptions& options) {
  if (options.epochs < 1)
    throw InvalidArgument(fmt::format("epochs = {} must be at least 1", options.epochs));
  const auto world = static_cast<std::size_t>(plan.world());
  if (!options.slowdown.empty() && options.slowdown.size() != world)
    throw InvalidArgument(
        fmt::format("slowdown has {} ranks, but the plan has {}", options.slowdown.size(), world));
  if (!(options.worker_share > 0 && options.worker_share <= 1))
    throw InvalidArgument(fmt::format("worker share = {} is outside (0, 1]", options.worker_share));
  if (!(options.noise >= 0 && options.noise < 1))
    throw InvalidArgument(fmt::format("noise = {} is outside [0, 1)", options.noise));
}

/// Requires that ranks with one representative have the same links, steps and durations.
void check_symmetry(const Plan& plan, const Machine& machine, const SimOptions& options) {
  const int world = plan.world(), period = machine.topology.period(world);
  if (plan.ranks.size() % static_cast<std::size_t>(period) != 0)
    throw InvalidArgument(fmt::format(
        "the plan's {} ranks cannot stand for all {} on {}, whose links repeat every {} ranks: make "
        "the plan for this machine",
        plan.ranks.size(), world, machine.name, period));
  if (!is_symmetric(plan)) return;
  const Contention& contention = machine.contention;
  const char* unlike = !options.slowdown.empty() ? "slowdown"
                       : options.noise > 0       ? "noise"
                       // Ranks that share cores take turns in the order of events at one instant, so they
                       // differ.
                       : contention.steals > 0 || contention.wake_us > 0 ? "sharing of cores"
                                                                         : nullptr;
  if (unlike)
    throw InvalidArgument(
        fmt::format("{} makes ranks differ, but {} ranks stand for all {}: plan all ranks (at most {})",
                    unlike, plan.ranks.size(), world, max_world));
}

}  // namespace

Index group_at(const Step& step, std::int64_t position) {
  const auto* notifies = notifies_of(step);
  if (notifies && !notifies->empty()) return static_cast<Index>(group_of(notifies->front().ends, position));
  const auto* gates = gates_of(step);
  if (gates && !gates->empty()) return static_cast<Index>(group_of(gates->front().ends, position));
  return none;
}

Simulation::Simulation(const Plan& plan, const Machine& machine, const SimOptions& options)
    : plan_(plan), machine_(machine), options_(options), costs_(plan, machine), bits_(options.seed) {
  const auto world = plan.ranks.size();
  check(plan, options);
  check_symmetry(plan, machine, options);
  capacity_ = std::max(1, static_cast<std::int32_t>(machine.workers * options.worker_share));
  free_.assign(world, capacity_);
  computing_.assign(world, 0);
  computing_since_.assign(world, 0);
  traffic_gbps_.assign(world, 0);
  product_slowdown_.assign(world, 0);
  sending_.assign(world, 0);
  receiving_.assign(world, 0);
  link_until_.assign(world, 0);
  lanes_done_.assign(world, 0);
  rank_jobs_.resize(world);
  launcher_until_.assign(world + 1, 0);
  out_.computing_us.assign(world, 0);
  for (std::size_t r = 0; r < world; ++r) {
    first_lane_.push_back(static_cast<Index>(lanes_.size()));
    out_.busy_us.emplace_back(plan.ranks[r].lanes.size(), 0.0);
    for (std::size_t l = 0; l < plan.ranks[r].lanes.size(); ++l) {
      LaneState lane;
      lane.rank = static_cast<Index>(r), lane.lane = static_cast<Index>(l);
      lanes_.push_back(lane);
      const Lane& planned = plan.ranks[r].lanes[l];
      const bool paced = planned.kind == LaneKind::copy && machine.engine.gbps > 0;
      engines_.push_back(paced ? links_.add_channel(machine.engine.gbps) : none);
      for (const Step& step : planned.steps)
        if (const auto* polled = std::get_if<Await>(&step); polled && planned.submission.prelaunched)
          polled_[{polled->counter.counter, polled->counter.rank}] =
              planned.submission.launcher < 0 ? lane.rank : planned.submission.launcher;
    }
  }
  if (on_streams(machine) || machine.early_kernels) index_launches();
  engine_until_.assign(lanes_.size(), 0);
  for (const Counter& counter : plan.counters) {
    auto& first = first_count_.emplace_back();
    for (const auto& entries : counter.growth) {
      first.push_back(static_cast<Index>(counts_.size()));
      counts_.resize(counts_.size() + entries.size());
    }
  }
  calls_.resize(plan.communicators.size());
  entered_.assign(plan.communicators.size(), std::vector<std::size_t>(world, 0));
  const bool fair = machine.link.gbps > 0;
  for (std::size_t r = 0; r < world && fair; ++r) {
    egress_.push_back(links_.add_channel(machine.link.gbps));
    ingress_.push_back(links_.add_channel(machine.link.gbps));
  }
  const std::size_t per_node = static_cast<std::size_t>(machine.topology.ranks_per_node);
  for (std::size_t r = 0; r < world && per_node > 0 && machine.topology.node.gbps > 0; r += per_node) {
    node_out_.push_back(links_.add_channel(machine.topology.node.gbps));
    node_in_.push_back(links_.add_channel(machine.topology.node.gbps));
  }
}

void Simulation::index_launches() {
  program_ = lower(plan_);
  for (const LaneState& lane : lanes_) launch_of_.emplace_back(lane_plan(lane).steps.size(), nullptr);
  for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank)
    for (const Launch& launch : program_.ranks[rank].launches) {
      auto& steps = launch_of_[static_cast<std::size_t>(lane_index(static_cast<Index>(rank), launch.stream))];
      for (std::int32_t step = launch.first; step < launch.last; ++step)
        steps[static_cast<std::size_t>(step)] = &launch;
    }
}

/// The launch of the lane's current step. Null if steps are not launches on GPU streams.
const Launch* Simulation::launch_of(const LaneState& lane) const {
  return on_streams(machine_) ? launch_of(lane, lane.step) : nullptr;
}

/// The launch of a step, alone or with others. Null if the step launches nothing.
const Launch* Simulation::launch_of(const LaneState& lane, std::size_t step) const {
  return launch_of_.empty() ? nullptr
                            : launch_of_[static_cast<std::size_t>(lane_index(lane.rank, lane.lane))][step];
}

Simulated Simulation::run() && {
  for (Index lane = 0; lane < static_cast<Index>(lanes_.size()); ++lane)
    machine_.begin_us > 0 && !begins_early(lanes_[static_cast<std::size_t>(lane)])
        ? wake(lane, machine_.begin_us)
        : resume(lane);
  for (;;) {
    // Recomputes rates at most once per instant, however many transfers begin or end.
    if (links_changed_ && (events_.empty() || events_.next_at() > now_)) {
      links_changed_ = false;
      links_.share();
      const double at = links_.next_end();
      if (std::isfinite(at)) events_.push(std::max(at, now_), What::links, 0, ++links_version_);
    }
    if (events_.empty()) break;
    const Event event = events_.pop();
    now_ = event.at;
    switch (event.what) {
      case What::resume:
        resume(event.id);
        break;
      case What::batch:
        if (batches_[static_cast<std::size_t>(event.id)].version == event.version) batch_done(event.id);
        break;
      case What::transfer:
        transfer_over(event.id);
        break;
      case What::links:
        if (event.version != links_version_) break;
        links_changed_ = true;
        for (const Index id : links_.finished(now_)) {
          events_.push(now_ + transfers_[static_cast<std::size_t>(id)].latency_us, What::transfer, id);
          sent(id);
        }
        break;
      case What::collective:
        if (meetings_[static_cast<std::size_t>(event.id)].version == event.version) end(event.id);
        break;
    }
  }
  for (const LaneState& lane : lanes_)
    if (lane.epoch < options_.epochs) explain_stop();
  out_.events = events_.pushed();
  follow_critical_path();
  return std::move(out_);
}

void Simulation::wake(Index lane, double after_us) {
  events_.push(now_ + after_us, What::resume, lane);
}

void Simulation::resume(Index index) {
  LaneState& lane = lanes_[static_cast<std::size_t>(index)];
  for (;;) {
    if (lane.epoch >= options_.epochs ||
        lanes_done_[static_cast<std::size_t>(lane.rank)] <
            lane.epoch * static_cast<std::int32_t>(rank_plan(lane).lanes.size()))
      return;
    const auto& steps = lane_plan(lane).steps;
    if (lane.step == steps.size()) {  // all its work of this epoch must end before the epoch does
      if (lane.pending > 0) {
        lane.blocked = true;
        return;
      }
      lane.step = 0;
      ++lane.epoch;
      out_.makespan_us = std::max(out_.makespan_us, now_);
      const auto lanes = static_cast<std::int32_t>(rank_plan(lane).lanes.size());
      if (++lanes_done_[static_cast<std::size_t>(lane.rank)] % lanes == 0)
        for (Index l = 0; l < lanes; ++l)
          if (const Index other = lane_index(lane.rank, l); other != index) wake(other);
      continue;
    }
    if (!lane.entered) {
      lane.entered = true;
      lane.begin = now_;
    }
    if (!step(lane)) return;
    next_step(lane);
  }
}

void Simulation::next_step(LaneState& lane) {
  const Step& step = lane_plan(lane).steps[lane.step];
  const bool tiled = grid_of(step) != nullptr;
  const bool command = lane_plan(lane).kind == LaneKind::copy && is_command(step);
  if (!tiled && !command && now_ > lane.begin) {
    const Cause made = span(lane, lane.step, none, lane.begin, lane.cause);
    if (works(step)) lane.cause = made;  // a wait is not a cause that others wait for
  }
  lane.entered = lane.launched = lane.drained = lane.waiting = false;
  ++lane.step;
}

bool Simulation::step(LaneState& lane) {
  const Step& step = lane_plan(lane).steps[lane.step];
  if (const auto* wait = std::get_if<Await>(&step)) return await(lane, *wait);
  if (const auto* signal = std::get_if<Notify>(&step)) return notify(lane, *signal);
  if (const auto* call = std::get_if<Collective>(&step)) return collective(lane, *call);
  if (const auto* messages = std::get_if<Exchange>(&step)) return exchange(lane, *messages);
  if (const auto* assign = std::get_if<AssignSlots>(&step))
    return delayed(lane, noisy(machine_.launch_us + costs_.assign_us(*assign)));
  if (const auto* merge = std::get_if<MergeSlots>(&step))
    return delayed(lane, noisy(machine_.launch_us + costs_.merge_slots_us(*merge)));
  if (is_command(step)) return command(lane, step);
  const Launch* const launch = launch_of(lane);
  if (launch && launch->kind == LaunchKind::kernel && static_cast<std::size_t>(launch->first) < lane.step)
    return true;  // fused
  return compute(lane, step);
}

/// Returns false the first time and wakes the lane after `us`. Returns true when called again then.
bool Simulation::delayed(LaneState& lane, double us) {
  if (lane.launched) return true;
  lane.launched = true;
  if (us <= 0) return true;
  wake(lane_index(lane.rank, lane.lane), us);
  return false;
}

bool Simulation::blocked(LaneState& lane) {
  lane.blocked = lane.pending > 0 || lane.messages > 0;
  return lane.blocked;
}

void Simulation::unblock(LaneState& lane) {
  if (!lane.blocked || lane.pending > 0 || lane.messages > 0) return;
  lane.blocked = false;
  wake(lane_index(lane.rank, lane.lane));
}

/// Awaits and notifies in one launch cost one kernel. Event edges cost nothing. Copy engines have phases of
/// their own.
bool Simulation::synced(LaneState& lane) {
  const Launch* const launch = launch_of(lane);
  if (launch == nullptr || lane_plan(lane).kind == LaneKind::copy) return true;
  if (launch->event >= 0 || static_cast<std::size_t>(launch->first) < lane.step) return true;
  if (launch->kind == LaunchKind::delivery)
    return delayed(lane, may_start_early(lane, lane.step) ? 0 : noisy(machine_.launch_us));
  const auto behind = static_cast<std::size_t>(launch->last);
  if (behind < lane_plan(lane).steps.size() && may_start_early(lane, behind)) return true;
  return delayed(lane, noisy(machine_.sync_us));
}

/// Returns true if a step's kernel is resident before the kernels in front of it have ended.
bool Simulation::may_start_early(const LaneState& lane, std::size_t step) const {
  const Launch* const launch = machine_.early_kernels ? launch_of(lane, step) : nullptr;
  return launch && launch->may_start_early;
}

/// True if the lane's first product loads its weights while the run begins: that takes longer than the begin.
bool Simulation::begins_early(const LaneState& lane) const {
  const auto& steps = lane_plan(lane).steps;
  const auto product =
      std::ranges::find_if(steps, [](const Step& step) { return std::holds_alternative<Gemm>(step); });
  if (!machine_.early_kernels || product == steps.end()) return false;
  const Launch* const launch = launch_of(lane, static_cast<std::size_t>(product - steps.begin()));
  return launch != nullptr && launch->weights_early;
}

/// True if a kernel or messages of the lane follow an event of another lane, for which they wait. The time
/// that a collective takes longer then is in lone_latency.
bool Simulation::by_event(const LaneState& lane) const {
  const Launch* const launch = launch_of(lane);
  if (launch == nullptr || launch->event < 0) return false;
  const auto& steps = lane_plan(lane).steps;
  const auto next =
      std::find_if_not(steps.begin() + static_cast<std::ptrdiff_t>(lane.step), steps.end(), synchronises);
  return next != steps.end() && !std::holds_alternative<Collective>(*next);
}

bool Simulation::await(LaneState& lane, const Await& step) {
  if (!synced(lane)) return false;
  Count& awaited = count(step.counter);
  const std::int64_t target = absolute(step.counter, step.target, lane.epoch);
  if (awaited.value < target) {
    awaited.await({target, lane_index(lane.rank, lane.lane)});
    lane.waiting = true;
    return false;
  }
  if (lane.waiting) lane.cause = awaited.cause;
  const Lane& planned = lane_plan(lane);
  const bool polls = planned.kind == LaneKind::copy && planned.submission.prelaunched;
  if (polls) return delayed(lane, noisy(machine_.engine.poll_us));
  return delayed(lane, lane.waiting && by_event(lane) ? noisy(machine_.sync_us + machine_.signal_us) : 0);
}

bool Simulation::notify(LaneState& lane, const Notify& step) {
  if (blocked(lane) || !synced(lane)) return false;
  if (!lane.drained) {
    lane.drained = true;
    const LaneKind kind = lane_plan(lane).kind;
    double us = kind == LaneKind::copy ? noisy(machine_.engine.sync_us) : 0;
    // A host thread writes the flag that engines poll (DMA collectives §4.2.5).
    const auto polled = polled_.find({step.counter.counter, step.counter.rank});
    if (kind == LaneKind::host && polled != polled_.end())
      us = launch(polled->second, machine_.engine.control_us) - now_;
    if (us > 0) {
      wake(lane_index(lane.rank, lane.lane), us);
      return false;
    }
  }
  add(step.counter, step.value, lane.epoch, lane.cause);
  return true;
}

Count& Simulation::count(const CounterRef& at) {
  const Index first = first_count_[static_cast<std::size_t>(at.counter)][static_cast<std::size_t>(at.rank)];
  return counts_[static_cast<std::size_t>(first + at.entry)];
}

std::int64_t Simulation::absolute(const CounterRef& at, std::int64_t target, std::int32_t epoch) const {
  const Counter& counter = plan_.counters[static_cast<std::size_t>(at.counter)];
  return target + std::int64_t{epoch} *
                      counter.growth[static_cast<std::size_t>(at.rank)][static_cast<std::size_t>(at.entry)];
}

void Simulation::add(const CounterRef& at, std::int64_t value, std::int32_t epoch, Cause cause) {
  Count& counted = count(at);
  const bool sets = plan_.counters[static_cast<std::size_t>(at.counter)].kind == CounterKind::set;
  counted.value = sets ? std::max(counted.value, absolute(at, value, epoch)) : counted.value + value;
  counted.cause = cause;
  std::erase_if(counted.waiters, [&](const Waiter& waiter) {
    if (counted.value < waiter.target) return false;
    // Engines, gates of tiles and wait kernels poll the count. A waiting host lane is signalled after a
    // delay.
    const LaneState& lane = lanes_[static_cast<std::size_t>(waiter.lane)];
    const Launch* const launch = launch_of(lane);
    const bool polls = lane.job != none || lane_plan(lane).kind == LaneKind::copy ||
                       (launch && (launch->kind == LaunchKind::wait || launch->kind == LaunchKind::delivery));
    wake(waiter.lane, polls ? 0 : noisy(machine_.signal_us));
    return true;
  });
}

Cause Simulation::span(const LaneState& lane, std::size_t step, Index group, double begin, Cause cause) {
  out_.spans.push_back(
      {lane.rank, lane.lane, static_cast<std::int32_t>(step), group, lane.epoch, begin, now_});
  causes_.push_back(cause);
  if (works(lane_plan(lane).steps[step]) && !grid_of(lane_plan(lane).steps[step]))
    out_.busy_us[static_cast<std::size_t>(lane.rank)][static_cast<std::size_t>(lane.lane)] += now_ - begin;
  return static_cast<Cause>(out_.spans.size()) - 1;
}

double Simulation::noisy(double us) {
  if (options_.noise == 0 || us == 0) return us;
  const auto uniform = [&] { return (static_cast<double>(next_bits(bits_) >> 11) + 0.5) * 0x1p-53; };
  const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
  return us * std::max(1 + options_.noise * normal, 0.1);
}

/// Follows causes back from the span that ended last, then sorts the spans by begin.
void Simulation::follow_critical_path() {
  std::vector<std::size_t> order(out_.spans.size());
  Cause last = none;
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    if (last == none || out_.spans[i].end_us > out_.spans[static_cast<std::size_t>(last)].end_us)
      last = static_cast<Cause>(i);
  }
  std::vector<Cause> path;
  for (std::size_t steps = 0; last != none && steps <= out_.spans.size(); ++steps) {
    path.push_back(last);
    last = causes_[static_cast<std::size_t>(last)];
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return out_.spans[i].begin_us; });
  std::vector<std::size_t> place(order.size());
  std::vector<Span> sorted;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    sorted.push_back(out_.spans[order[i]]);
  }
  out_.spans = std::move(sorted);
  for (auto i = path.rbegin(); i != path.rend(); ++i)
    out_.critical_path.push_back(place[static_cast<std::size_t>(*i)]);
}

void Simulation::explain_stop() const {
  for (const LaneState& lane : lanes_)
    if (lane.epoch < options_.epochs && lane.step < lane_plan(lane).steps.size())
      throw InvalidArgument(fmt::format("the plan deadlocks: rank {}, lane {}, step {} ({}) never ends",
                                        lane.rank, lane_plan(lane).name, lane.step,
                                        name(lane_plan(lane).steps[lane.step])));
  throw InvalidArgument("the plan deadlocks");
}

}  // namespace sim
}  // namespace shingle
