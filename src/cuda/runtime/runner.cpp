#include "runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "branches.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {
namespace {

constexpr double slack_us = 10e6;  // extra time for threads that keep their own deadline

/// Makes the communicators of a plan: all processes in one order, including communicators without a local
/// rank. Returns those whose ranks send each other point-to-point messages.
std::vector<CommKey> make_communicators(CudaWorld& world, const Plan& plan) {
  std::vector<CommKey> exchanging;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps) {
        const auto* collective = std::get_if<Collective>(&step);
        const auto* exchange = std::get_if<Exchange>(&step);
        if (collective == nullptr && exchange == nullptr) continue;
        const CommKey key = collective != nullptr
                                ? comm_key(plan, collective->communicator, collective->resources)
                                : comm_key(plan, exchange->communicator, exchange->resources);
        world.communicator(key);
        const bool messages = exchange != nullptr || collective->kind == CollectiveKind::alltoall;
        if (messages && std::ranges::find(exchanging, key) == exchanging.end()) exchanging.push_back(key);
      }
  return exchanging;
}

std::size_t most_lanes(const Plan& plan) {
  std::size_t most = 0;
  for (const RankPlan& rank : plan.ranks) most = std::max(most, rank.lanes.size());
  return most;
}

}  // namespace

Runner::Runner(CudaWorld& world, const Plan& plan)
    : world_(world),
      plan_(plan),
      program_(lower(plan_)),
      memory_(plan_, world),
      launchers_(world.local()),
      start_(world),
      timeout_us_(world.options().timeout_us) {
  for (const CommKey& key : make_communicators(world, plan_)) exchanging_.push_back(&world.communicator(key));
  for (LocalRank& local : world.local()) {
    const DeviceGuard guard(local.device());
    ranks_.push_back(std::make_unique<RankProgram>(
        world, plan_, program_.ranks[static_cast<std::size_t>(local.rank())], memory_, local));
    times_.emplace_back();
    greetings_.emplace_back(static_cast<std::size_t>(world.size()) + 1);
  }
}

void Runner::connect() {
  world_.health().require();
  const std::size_t lanes = most_lanes(plan_);
  const bool known = world_.side_by_side().contains(lanes);
  const auto trials = std::make_shared<std::vector<char>>(ranks_.size(), 1);
  try {
    on_all(
        [this, lanes, known, trials](std::size_t index) {
          connect(index);
          if (!known) (*trials)[index] = run_side_by_side(lanes) ? 1 : 0;
        },
        connect_us());
    if (!known) {
      const bool any_not = std::ranges::find(*trials, 0) != trials->end();
      world_.side_by_side()[lanes] = world_.all_max({any_not ? 1.0 : 0.0})[0] == 0;
    }
    graphs_ = world_.side_by_side()[lanes];
    if (!known && !graphs_)
      log_line(
          LogLevel::info,
          fmt::format("{} lanes do not run concurrently as branches of a graph: streams are used instead",
                      lanes));
    if (!program_.unfit_for_graph.empty()) graphs_ = false;
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Sends one byte between every two ranks. NCCL connects the transports of collectives when it makes a
/// communicator, but those of point-to-point messages only at the first message.
void Runner::connect(std::size_t index) {
  const int rank = ranks_[index]->local().rank();
  const Stream stream;
  const Event done;
  start_.meet(index, stream.get());
  auto* const bytes = greetings_[index].get<char>();
  for (const Communicator* communicator : exchanging_) {
    const ncclComm_t comm = communicator->of(rank);
    if (comm == nullptr) continue;
    int size = 0;
    check(ncclCommCount(comm, &size), "ncclCommCount");
    check(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < size; ++peer) {
      check(ncclSend(bytes, 1, ncclUint8, peer, comm, stream.get()), "ncclSend");
      check(ncclRecv(bytes + 1 + peer, 1, ncclUint8, peer, comm, stream.get()), "ncclRecv");
    }
    check(ncclGroupEnd(), "ncclGroupEnd");
  }
  done.record(stream.get());
  const auto deadline = deadline_in(connect_us());
  while (!done.done()) {
    if (launchers_.failed() || Clock::now() > deadline)
      throw UnnamedTimeout(
          fmt::format("rank {}: not all ranks connected within {}", rank, format_us(connect_us())), rank);
    std::this_thread::sleep_for(nap);
  }
}

void Runner::on_all(std::function<void(std::size_t)> action, double timeout_us) {
  begin_watch();
  launchers_.run(std::move(action), timeout_us + slack_us, [this] { watch(); });
}

void Runner::prepare(double timeout_us) {
  require_working();
  timeout_us_ = timeout_us;
  for (LocalRank& rank : world_.local()) rank.set_timeout_us(timeout_us);
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
      require_working();
    }
  }
  // If one process fails, all throw. If one process must capture, all do.
  const bool stale =
      graphs_ && !std::ranges::all_of(ranks_, [](const auto& rank) { return rank->captured(); });
  const auto most = world_.all_max({error ? 1.0 : 0.0, stale ? 1.0 : 0.0}, connect_us());
  if (error) std::rethrow_exception(error);
  if (most[0] > 0)
    throw Error("another process failed to prepare its part of the plan; its own message says why");
  if (most[1] > 0) capture();
}

void Runner::capture() {
  synchronize();
  try {
    on_all([this](std::size_t index) { ranks_[index]->capture(); },
           std::max(timeout_us_, world_.options().timeout_us));
  } catch (...) {
    fail(std::current_exception());
  }
}

RunReport Runner::run(const RunOptions& options) {
  prepare(options.timeout_us);
  const auto begin = Clock::now();
  try {
    start(options.trace ? By::traced_streams : graphs_ ? By::graph : By::streams, options);
    wait_until([this] { return std::ranges::all_of(times_, [](const Times& at) { return at.end.done(); }); });
    enqueued_ = 0;
    warm_ = true;
    // The other processes may take as long again if no step of the plan makes this process wait for them.
    return report(options,
                  timeout_us_ + std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
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
  if (!lines_up && !alone) world_.barrier(timeout_us_);
  on_all(
      [this, by, options, lines_up](std::size_t index) {
        RankProgram& rank = *ranks_[index];
        if (lines_up)
          start_.enqueue(index, rank.watch(), rank.stream());
        else
          meet();
        times_[index].begin.record(rank.stream());
        launch(index, by, 0, std::min(options.epochs, rank.backlog().most()), options.epochs);
      },
      options.timeout_us * (enqueued_ + 1));
  if (lines_up) {
    if (!alone) world_.barrier(timeout_us_);
    start_.go();
  }
  if (std::ranges::all_of(ranks_, [&](const auto& rank) { return options.epochs <= rank->backlog().most(); }))
    return;
  on_all(
      [this, by, options](std::size_t index) {
        launch(index, by, std::min(options.epochs, ranks_[index]->backlog().most()), options.epochs,
               options.epochs);
      },
      options.timeout_us * (options.epochs + enqueued_ + 1));
}

/// Barrier of the launching threads of all local ranks.
void Runner::meet() {
  ++arrived_;
  const auto deadline = deadline_in(timeout_us_);
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
    make_room(rank);
    if (by == By::traced_streams)
      rank.enqueue_traced(rank.stream(), epoch);
    else if (by == By::graph)
      rank.replay(rank.stream());
    else
      rank.enqueue(rank.stream());
    if (epoch + 1 == all) times_[index].end.record(rank.stream());
  }
}

/// Waits until the driver's queues take another epoch. A launch into a full queue would block without a
/// deadline.
void Runner::make_room(const RankProgram& rank) const {
  const auto deadline = deadline_in(timeout_us_ + epoch_slack_us);
  while (rank.backlog().full()) {
    require_sound();
    if (launchers_.failed()) throw Timeout("another rank has failed");
    if (Clock::now() > deadline)
      throw UnnamedTimeout(
          fmt::format("rank {}: no epoch has ended for {}", rank.local().rank(), format_us(timeout_us_)),
          rank.local().rank());
    std::this_thread::sleep_for(nap);
  }
}

void Runner::enqueue(std::span<void* const> streams) {
  require_working();
  if (streams.size() != ranks_.size())
    throw InvalidArgument(
        fmt::format("{} streams for {} ranks of this process; expected one a rank, in order of rank",
                    streams.size(), ranks_.size()));
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
      make_room(rank);
      graphs_ ? rank.replay(stream) : rank.enqueue(stream);
    }
    if (!captured) ++enqueued_;
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Throws if an epoch cannot be enqueued now. Returns whether the user is capturing the streams.
bool Runner::require_ready(std::span<void* const> streams) const {
  std::size_t captured = 0;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    const RankProgram& rank = *ranks_[index];
    if (!rank.prepared() || (graphs_ && !rank.captured()))
      throw InvalidArgument("matrices were bound after prepare(): call prepare() again before enqueue()",
                            rank.local().rank());
    const DeviceGuard guard(rank.local().device());
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(static_cast<cudaStream_t>(streams[index]), &status), "cudaStreamIsCapturing");
    captured += status != cudaStreamCaptureStatusNone ? 1 : 0;
    if (status != cudaStreamCaptureStatusNone && rank.alternates())
      throw Unsupported(
          "a plan with two sets of buffers cannot be captured: its epochs alternate between them",
          rank.local().rank());
  }
  if (captured == 0) return false;
  if (captured < ranks_.size())
    throw InvalidArgument("only some of the streams are being captured; capture all or none");
  if (!graphs_)
    throw Unsupported(
        !program_.unfit_for_graph.empty()
            ? program_.unfit_for_graph
            : fmt::format("the plan's {0} lanes do not run concurrently as branches of a graph here; "
                          "CUDA_DEVICE_MAX_CONNECTIONS must be at least {0}",
                          most_lanes(plan_)));
  return true;
}

void Runner::synchronize() {
  world_.health().require();
  try {
    wait_until([this] {
      return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->backlog().empty(); });
    });
    enqueued_ = 0;
  } catch (...) {
    fail(std::current_exception());
  }
}

void Runner::wait_until(const std::function<bool()>& done) {
  begin_watch();
  for (auto look = Clock::now() + attention; !done(); std::this_thread::sleep_for(nap)) {
    const auto now = Clock::now();
    if (now < look) continue;
    watch();
    look = now + attention;
  }
  require_sound();
}

void Runner::watch() {
  require_sound();
  world_.watch();
  require_progress();
}

void Runner::begin_watch() {
  next_end_ = deadline_in(timeout_us_ + epoch_slack_us);
}

/// Waits inside NCCL have no deadline. While epochs are in flight, one must therefore end within the timeout.
void Runner::require_progress() {
  std::size_t ended = 0, added = 0;
  for (const auto& rank : ranks_) ended += rank->backlog().ended(), added += rank->backlog().added();
  if (ended != ended_ || ended == added) {
    ended_ = ended;
    return begin_watch();
  }
  if (Clock::now() > next_end_)
    throw UnnamedTimeout(fmt::format("rank {}: no epoch has ended for {}", ranks_.front()->local().rank(),
                                     format_us(timeout_us_)),
                         ranks_.front()->local().rank());
}

double Runner::connect_us() const {
  return std::max(timeout_us_, least_connect_us);
}

void Runner::require_sound() const {
  for (const auto& rank : ranks_)
    if (rank->local().aborted()) throw UnnamedTimeout(diagnosis(), rank->local().rank());
}

/// Throws if the world is broken, or if an earlier enqueued epoch has failed.
void Runner::require_working() {
  world_.health().require();
  try {
    require_sound();
  } catch (...) {
    fail(std::current_exception());
  }
}

/// Names the waits that passed their deadline: rank, counter, value seen, value wanted.
std::string Runner::diagnosis() const {
  std::string text;
  for (const auto& rank : ranks_) {
    if (!rank->local().aborted()) continue;
    const Stall stall = rank->local().stall();
    if (stall.counter == nullptr) continue;
    text += fmt::format("{}rank {} waited for {}: saw {}, wanted {}", text.empty() ? "" : "; ",
                        rank->local().rank(), memory_.describe(stall.counter), stall.seen, stall.wanted);
  }
  return text.empty() ? "a wait on a device was ended" : text;
}

void Runner::fail(std::exception_ptr error) {
  if (launchers_.stuck()) world_.health().give_up();
  world_.fail(error);
  if (auto first = world_.health().error()) std::rethrow_exception(first);
  std::rethrow_exception(error);
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
  return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->idle(); });
} catch (...) {
  return true;  // a failed device runs nothing
}

void Runner::drop_graphs() noexcept {
  for (const auto& rank : ranks_) rank->drop_graphs();
}

}  // namespace shingle::cuda
