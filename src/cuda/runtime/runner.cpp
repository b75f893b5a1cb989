#include "runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"
#include "user_streams.hpp"

namespace shingle::cuda {

Runner::Runner(CudaWorld& world, const Plan& plan)
    : world_(world),
      plan_(plan),
      program_(lower(plan_)),
      memory_(plan_, world),
      monitor_(world),
      launchers_(world.local()),
      start_(world),
      connections_(world, plan_) {
  for (LocalRank& local : world.local()) {
    const DeviceGuard guard(local.device());
    ranks_.push_back(std::make_unique<RankProgram>(world, plan_,
                                                   program_.ranks[static_cast<std::size_t>(local.rank())],
                                                   memory_, local, monitor_.of_kernels()));
    monitor_.add(local, ranks_.back()->queue().backlog());
    times_.emplace_back();
  }
}

void Runner::connect() {
  world_.health().require();
  try {
    graphs_ = connections_.connect(start_, launchers_, monitor_);
    if (!program_.unfit_for_graph.empty()) graphs_ = false;
  } catch (...) {
    fail(std::current_exception());
  }
}

void Runner::on_all(std::function<void(std::size_t)> action, double timeout_us) {
  monitor_.run_on_all(launchers_, std::move(action), timeout_us);
}

void Runner::prepare(double timeout_us) {
  monitor_.require_working();
  monitor_.set_timeout_us(timeout_us);
  const bool replayed = std::ranges::any_of(ranks_, [](const auto& rank) { return rank->is_lent(); });
  memory_.map_bound([this] { synchronize(); }, replayed, timeout_us);
  const bool ready = std::ranges::all_of(
      ranks_, [this](const auto& rank) { return graphs_ ? rank->captured() : rank->prepared(); });
  if (world_.all_max({ready ? 0.0 : 1.0}, timeout_us)[0] == 0) return;
  std::exception_ptr error;
  if (!std::ranges::all_of(ranks_, [](const auto& rank) { return rank->prepared(); })) {
    synchronize();
    try {
      on_all([this](std::size_t index) { ranks_[index]->prepare(); },
             std::max(timeout_us, world_.options().timeout_us));
    } catch (...) {
      error = std::current_exception();
      if (launchers_.stuck()) fail(error);
      monitor_.require_working();
    }
  }
  // If one process fails, all throw. If one process must capture, all do.
  const bool stale =
      graphs_ && !std::ranges::all_of(ranks_, [](const auto& rank) { return rank->captured(); });
  const auto most = world_.all_max({error ? 1.0 : 0.0, stale ? 1.0 : 0.0}, monitor_.connect_us());
  if (error) std::rethrow_exception(error);
  if (most[0] > 0)
    throw Error("another process failed to prepare its part of the plan; its own message says why");
  if (most[1] > 0) capture();
}

void Runner::capture() {
  synchronize();
  try {
    on_all([this](std::size_t index) { ranks_[index]->capture(); },
           std::max(monitor_.timeout_us(), world_.options().timeout_us));
  } catch (...) {
    fail(std::current_exception());
  }
}

RunReport Runner::run(const RunOptions& options) {
  prepare(options.timeout_us);
  const auto begin = Clock::now();
  try {
    start(options.trace ? By::traced_streams : graphs_ ? By::graph : By::streams, options);
    monitor_.wait_until(
        [this] { return std::ranges::all_of(times_, [](const Times& at) { return at.end.done(); }); });
    enqueued_ = 0;
    warm_ = true;
    // The other processes may take as long again if no step of the plan makes this process wait for them.
    return report(options, monitor_.timeout_us() +
                               std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Enqueues the epochs of a run. From the second run on, ranks wait at the start line: as many epochs as the
/// driver's queues take are enqueued before the run begins. The first run must not wait there: a waiting
/// kernel could block NCCL's one-time setup. Plans whose host threads create commands during the run do not
/// wait there either. In both cases the launching threads start together.
void Runner::start(By by, const RunOptions& options) {
  const bool lines_up = warm_ && !program_.host_creates_commands;
  const bool alone = world_.local().size() == static_cast<std::size_t>(world_.size());
  arrived_ = 0;
  if (!lines_up && !alone) world_.barrier(monitor_.timeout_us());
  on_all(
      [this, by, options, lines_up](std::size_t index) {
        RankProgram& rank = *ranks_[index];
        if (lines_up)
          start_.enqueue(index, rank.watch(), rank.stream());
        else
          meet();
        times_[index].begin.record(rank.stream());
        launch(index, by, 0, std::min(options.epochs, rank.queue().backlog().most()), options.epochs);
      },
      options.timeout_us * (enqueued_ + 1));
  if (lines_up) {
    if (!alone) world_.barrier(monitor_.timeout_us());
    start_.go();
  }
  if (std::ranges::all_of(ranks_,
                          [&](const auto& rank) { return options.epochs <= rank->queue().backlog().most(); }))
    return;
  on_all(
      [this, by, options](std::size_t index) {
        launch(index, by, std::min(options.epochs, ranks_[index]->queue().backlog().most()), options.epochs,
               options.epochs);
      },
      options.timeout_us * (options.epochs + enqueued_ + 1));
}

/// Barrier of the launching threads of all local ranks.
void Runner::meet() {
  ++arrived_;
  const auto deadline = deadline_in(monitor_.timeout_us());
  while (arrived_ < ranks_.size()) {
    if (launchers_.failed() || Clock::now() > deadline)
      throw UnnamedTimeout("not all ranks of this process began the run");
    std::this_thread::yield();
  }
}

/// Enqueues epochs [first, last) of a run of `all` epochs. Records the end of the run after its last epoch.
void Runner::launch(std::size_t index, By by, int first, int last, int all) {
  RankProgram& rank = *ranks_[index];
  for (int epoch = first; epoch < last; ++epoch) {
    monitor_.make_room(rank.local().rank(), rank.queue().backlog(), rank.launches(),
                       [this] { return launchers_.failed(); });
    if (by == By::traced_streams)
      rank.enqueue_traced(rank.stream(), epoch);
    else if (by == By::graph)
      rank.replay(rank.stream());
    else
      rank.enqueue(rank.stream());
    if (epoch + 1 == all) times_[index].end.record(rank.stream());
  }
}

void Runner::enqueue(std::span<void* const> streams) {
  monitor_.require_working();
  require_one_each(world_.local(), streams);
  const bool captured = require_ready(streams);
  try {
    for (std::size_t index = 0; index < ranks_.size(); ++index) {
      RankProgram& rank = *ranks_[index];
      const DeviceGuard guard(rank.local().device());
      const auto stream = static_cast<cudaStream_t>(streams[index]);
      if (captured) {
        rank.lend(stream);
        continue;
      }
      monitor_.make_room(rank.local().rank(), rank.queue().backlog(), rank.launches(), [] { return false; });
      graphs_ ? rank.replay(stream) : rank.enqueue(stream);
    }
    if (!captured) ++enqueued_;
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Throws if an epoch cannot be enqueued now. Returns whether the user is capturing the streams.
bool Runner::require_ready(std::span<void* const> streams) const {
  for (const auto& rank : ranks_)
    if (!rank->prepared() || (graphs_ && !rank->captured()))
      throw InvalidArgument("matrices were bound after prepare(): call prepare() again before enqueue()",
                            rank->local().rank());
  if (!are_captured(world_.local(), streams)) return false;
  for (const auto& rank : ranks_)
    if (rank->alternates())
      throw Unsupported(
          "a plan with two sets of buffers cannot be captured: its epochs alternate between them",
          rank->local().rank());
  if (!graphs_)
    throw Unsupported(program_.unfit_for_graph.empty() ? too_many_for_graph(most_lanes(plan_))
                                                       : program_.unfit_for_graph);
  return true;
}

void Runner::synchronize() {
  world_.health().require();
  try {
    monitor_.wait_until([this] {
      return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->queue().backlog().empty(); });
    });
    enqueued_ = 0;
  } catch (...) {
    fail(std::current_exception());
  }
}

void Runner::fail(std::exception_ptr error) {
  if (launchers_.stuck()) world_.health().give_up();
  world_.fail_and_throw(std::move(error));
}

RunReport Runner::report(const RunOptions& options, double timeout_us) {
  RunReport report;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    report.elapsed_us =
        std::max(report.elapsed_us, 1e3 * times_[index].end.milliseconds_since(times_[index].begin));
    if (!options.trace) continue;
    const auto spans = ranks_[index]->spans(times_[index].begin);
    report.spans.insert(report.spans.end(), spans.begin(), spans.end());
  }
  report.elapsed_us = world_.all_max({report.elapsed_us}, timeout_us)[0];
  return report;
}

std::int64_t Runner::bytes(int rank) const {
  std::int64_t bytes = memory_.internal_bytes(rank);
  for (const auto& program : ranks_)
    if (program->local().rank() == rank) bytes += program->bytes();
  return bytes;
}

bool Runner::idle() const noexcept try {
  return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->queue().idle(); });
} catch (...) {
  return true;  // a failed device runs nothing
}

std::string Runner::describe(const Stall& stall) const {
  const std::string awaited =
      start_.is_awaited_at(stall.counter) ? "the start of the run" : memory_.describe(stall.counter);
  if (awaited.empty()) return {};
  return fmt::format("waited for {}: saw {}, wanted {}", awaited, stall.seen, stall.wanted);
}

void Runner::drop_graphs() noexcept {
  for (const auto& rank : ranks_) rank->drop_graphs();
}

}  // namespace shingle::cuda
