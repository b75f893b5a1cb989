#include "executable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "diagnosis.hpp"
#include "interpreter.hpp"
#include "scheduling.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {

HostExecutable::HostExecutable(std::unique_ptr<Engine> engine)
    : engine_(std::move(engine)), next_epoch_(engine_->first_epoch) {
  WorldState& world = *engine_->world;
  const auto ranks = static_cast<int>(engine_->plan.ranks.size());
  for (const int rank : world.local_ranks) {
    const int workers = world.machine.workers;
    // Other processes bind the matrices of their own ranks
    const bool here = static_cast<int>(world.local_ranks.size()) == ranks;
    Rank& made = *ranks_.emplace_back(std::make_unique<Rank>());
    made.number = rank;
    if (here) made.cores = cores_of(rank, ranks, workers);
    made.first_epoch = next_epoch_;
    std::weak_ptr<Pool>& shared = world.pools[rank];
    made.pool = shared.lock();
    if (!made.pool) shared = made.pool = std::make_shared<Pool>(workers - 1, made.cores, world.health);
    const auto lanes = engine_->plan.ranks[static_cast<std::size_t>(rank)].lanes.size();
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      lanes_.push_back(std::make_unique<LaneThread>());
      lanes_.back()->rank = &made;
      lanes_.back()->lane = static_cast<int>(lane);
    }
  }
  world.health.expect(lanes_.size());
  try {
    for (auto& lane : lanes_) lane->thread = std::thread([this, &lane = *lane] { serve(lane); });
  } catch (const std::system_error&) {
    stop();
    throw Unsupported(fmt::format("cannot start threads for the {} lanes of the plan", lanes_.size()));
  }
}

HostExecutable::~HostExecutable() {
  engine_->world->streams.synchronize();
  stop();
}

void HostExecutable::stop() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  for (auto& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
}

void HostExecutable::bind(int rank, Role role, const MatrixMemory& memory) {
  engine_->memory.bind(next_epoch_, rank, role, memory);
}
std::int64_t HostExecutable::internal_bytes(int rank) const {
  return engine_->memory.internal_bytes(rank);
}
void HostExecutable::poison() {
  engine_->memory.poison();
}

RunReport HostExecutable::run(const RunOptions& options) {
  if (options.epochs < 1)
    throw InvalidArgument(fmt::format("epochs = {} must be at least 1", options.epochs));
  if (!(options.timeout_us > 0))
    throw InvalidArgument(fmt::format("timeout = {} us must be positive", options.timeout_us));
  Health& health = engine_->world->health;
  synchronize();
  engine_->memory.require_bound();
  engine_->timeout_us = options.timeout_us;
  engine_->trace = options.trace;
  engine_->first_epoch = next_epoch_;
  try {
    engine_->transport->begin_run();
    for (const auto& rank : ranks_) engine_->memory.begin(rank->number, next_epoch_);
    const auto launched = engine_->prelaunch();
    if (launched > engine_->deadline())
      throw Timeout(fmt::format("creating the commands of prelaunched engines would take longer than {}",
                                format_us(options.timeout_us)));
    sleep_until(launched, health);
    engine_->start = Clock::now();
    std::vector<Rank*> all;
    for (const auto& rank : ranks_) all.push_back(rank.get());
    run_ranks(all, options.epochs);
    engine_->deliveries.drain(health);
    next_epoch_ += static_cast<std::uint32_t>(options.epochs);
    if (!health.stopped()) {
      for (const auto& rank : ranks_) engine_->memory.end(rank->number, next_epoch_ - 1);
      RunReport result = report();
      engine_->transport->end_run(result);
      return result;
    }
  } catch (const Stopped&) {
  } catch (...) {
    health.fail(std::current_exception());
  }
  engine_->transport->abandon(health.reason());
  std::rethrow_exception(health.error());
}

void HostExecutable::run_ranks(std::span<Rank* const> ranks, int epochs) {
  auto start_barrier = std::make_shared<StartBarrier>();
  for (const auto& lane : lanes_)
    if (std::ranges::find(ranks, lane->rank) != ranks.end()) ++start_barrier->lanes;
  std::unique_lock lock(mutex_);
  for (Rank* const rank : ranks) {
    rank->epochs = epochs;
    rank->running = engine_->plan.ranks[static_cast<std::size_t>(rank->number)].lanes.size();
    rank->start = start_barrier;
    if (rank->running > 0) ++rank->generation;
  }
  wake_.notify_all();
  const auto done = [&] {
    return std::ranges::all_of(ranks, [](const Rank* rank) { return rank->running == 0; });
  };
  // Meanwhile polls for failures that no lane can notice.
  while (!idle_.wait_for(lock, attention, done)) {
    if (engine_->health().stopped()) continue;
    engine_->transport->watch();
    watch_hooks();
  }
  for (Rank* const rank : ranks) rank->first_epoch += static_cast<std::uint32_t>(epochs);
}

void HostExecutable::prepare(double timeout_us) {
  if (!(timeout_us > 0)) throw InvalidArgument(fmt::format("timeout = {} us must be positive", timeout_us));
  synchronize();
  engine_->timeout_us = timeout_us;
  engine_->trace = false;
  engine_->start = Clock::now();
  prepared_ = true;
}

void HostExecutable::enqueue(std::span<void* const> streams) {
  enqueue_epoch({}, streams, std::nullopt);
}

void HostExecutable::enqueue(const CallTag& tag, std::span<const CallMatrix> matrices,
                             std::span<void* const> streams) {
  enqueue_epoch(matrices, streams, tag);
}

void HostExecutable::enqueue_epoch(std::span<const CallMatrix> matrices, std::span<void* const> streams,
                                   const std::optional<CallTag>& tag) {
  WorldState& world = *engine_->world;
  world.health.require();
  if (!prepared_) throw InvalidArgument("call prepare() before enqueue()");
  if (streams.size() != ranks_.size() && !(tag && streams.empty()))
    throw InvalidArgument(
        fmt::format("{} streams for {} ranks of this process; expected one a rank, in order of rank",
                    streams.size(), ranks_.size()));
  if (std::ranges::any_of(streams, [](const void* stream) { return stream != nullptr; }))
    throw InvalidArgument("the host backend has a stream of its own for each rank: pass null");
  for (const RankPlan& rank : engine_->plan.ranks)
    for (const Lane& lane : rank.lanes)
      if (lane.submission.prelaunched)
        throw Unsupported(fmt::format("lane {} is prelaunched: call run() instead of enqueue()", lane.name));
  for (const CallMatrix& matrix : matrices)
    engine_->memory.bind(next_epoch_, matrix.rank, matrix.role, matrix.memory);
  engine_->memory.require_bound();
  ++next_epoch_;
  for (const auto& rank : ranks_)
    world.streams.enqueue(rank->number, [this, &rank = *rank, tag] { call(rank, tag); });
}

/// One enqueued epoch of a rank, in the rank's stream.
void HostExecutable::call(Rank& rank, const std::optional<CallTag>& tag) {
  engine_->transport->begin_calls();
  engine_->memory.begin(rank.number, rank.first_epoch);
  Rank* const ranks[] = {&rank};
  try {
    if (tag) engine_->transport->require_same_call(*tag);
    run_ranks(ranks, 1);
  } catch (const Stopped&) {
  } catch (...) {
    engine_->world->health.fail(std::current_exception());
  }
  if (engine_->health().stopped()) return engine_->transport->abandon(engine_->health().reason());
  engine_->memory.end(rank.number, rank.first_epoch - 1);
}

void HostExecutable::synchronize() {
  engine_->world->streams.synchronize();
  if (!engine_->health().stopped()) engine_->deliveries.drain(engine_->health());
  engine_->transport->end_calls();
  engine_->health().require();
}

/// A lane can be stuck without a deadline of its own only in a hook. Lanes that wait for that lane time out
/// after one timeout, with more detail, so the hook gets two.
void HostExecutable::watch_hooks() {
  for (const auto& lane : lanes_) {
    const double since = lane->in_hook_since_us.load();
    if (since < 0 || engine_->now_us() - since < 2 * engine_->timeout_us) continue;
    const int rank = lane->rank->number;
    const Progress::Position at = engine_->progress.position(rank, lane->lane);
    engine_->world->health.fail(
        std::make_exception_ptr(Timeout(fmt::format("{}: the hook before the step has not returned for {}",
                                                    describe(*engine_, {rank, lane->lane, at.step, at.epoch}),
                                                    format_us(2 * engine_->timeout_us)),
                                        rank)));
  }
}

RunReport HostExecutable::report() {
  RunReport result;
  double begin = 0, end = 0;
  for (const auto& lane : lanes_) {
    begin = lane == lanes_.front() ? lane->begin_us : std::min(begin, lane->begin_us);
    end = std::max(end, lane->end_us);
    result.spans.insert(result.spans.end(), lane->spans.begin(), lane->spans.end());
  }
  result.elapsed_us = end - begin;
  return result;
}

// The functions below run in the lanes' threads.

void HostExecutable::serve(LaneThread& lane) {
  const Lane& plan = engine_->plan.ranks[static_cast<std::size_t>(lane.rank->number)]
                         .lanes[static_cast<std::size_t>(lane.lane)];
  sleep_precisely();
  if (plan.kind == LaneKind::compute) {
    stay_on(lane.rank->cores);
  } else {
    wake_promptly();
  }
  compute_on_this_thread_only();
  Worker worker;
  std::unique_lock lock(mutex_);
  for (std::uint64_t served = 0;; ++served) {
    wake_.wait(lock, [&] { return quit_ || lane.rank->generation > served; });
    if (quit_) return;
    std::shared_ptr<StartBarrier> start = lane.rank->start;
    const std::uint32_t first = lane.rank->first_epoch;
    const int epochs = lane.rank->epochs;
    lock.unlock();
    line_up(*start, plan.kind, engine_->health());
    start.reset();
    run_epochs(lane, worker, first, epochs);
    lock.lock();
    if (--lane.rank->running == 0) idle_.notify_all();
  }
}

/// Compute lanes begin once every lane's thread has run on a core. Otherwise a compute lane may keep another
/// lane off a shared core until the kernel's next tick.
void HostExecutable::line_up(StartBarrier& start, LaneKind kind, const Health& health) {
  ++start.up;
  if (kind != LaneKind::compute) return;
  while (start.up < start.lanes && !health.stopped()) std::this_thread::yield();
}

void HostExecutable::run_epochs(LaneThread& lane, Worker& worker, std::uint32_t first, int epochs) {
  lane.spans.clear();
  lane.begin_us = engine_->now_us();
  try {
    const auto lanes =
        static_cast<int>(engine_->plan.ranks[static_cast<std::size_t>(lane.rank->number)].lanes.size());
    for (int epoch = 0; epoch < epochs; ++epoch) {
      run_steps(lane, worker, first + static_cast<std::uint32_t>(epoch));
      join_lanes(*lane.rank, lanes);
    }
  } catch (const Stopped&) {
  } catch (...) {
    engine_->world->health.fail(std::current_exception());
  }
  lane.end_us = engine_->now_us();
}

void HostExecutable::run_steps(LaneThread& lane, Worker& worker, std::uint32_t epoch) {
  const auto& steps = engine_->plan.ranks[static_cast<std::size_t>(lane.rank->number)]
                          .lanes[static_cast<std::size_t>(lane.lane)]
                          .steps;
  Interpreter interpreter(*engine_, *lane.rank->pool, worker, lane.spans);
  Caller caller{lane.rank->number, lane.lane, 0, epoch};
  for (caller.step = 0; caller.step < static_cast<int>(steps.size()); ++caller.step) {
    engine_->progress.enter(caller);
    engine_->health().check();
    if (const auto& hook = engine_->world->options.on_step) {
      lane.in_hook_since_us = engine_->now_us();
      hook({caller.rank, caller.lane, caller.step, static_cast<int>(epoch), engine_->health().stopped()});
      lane.in_hook_since_us = -1;
      engine_->health().check();
    }
    interpreter.run(caller);
  }
  interpreter.finish();
  engine_->progress.enter(caller);
}

/// The lanes of a rank begin an epoch together. This wait needs no deadline: a late lane has a deadline of
/// its own wherever it can be stuck.
void HostExecutable::join_lanes(Rank& rank, int lanes) {
  std::unique_lock lock(rank.mutex);
  const std::uint64_t join = rank.joins;
  if (++rank.arrived == lanes) {
    rank.arrived = 0;
    ++rank.joins;
    rank.changed.notify_all();
    return;
  }
  wait_until(lock, rank.changed, engine_->health(), Clock::time_point::max(),
             [&] { return rank.joins != join; });
}

}  // namespace shingle::host
