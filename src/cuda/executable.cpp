#include "executable.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "backend/remote.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto attention = std::chrono::milliseconds(5);  // between looks at what no event tells
constexpr double trial_us = 2e6;                          // of a wait in a graph's first replay

Clock::time_point after(double us) {
  constexpr double longest_us = 1e14;  // what is added to a point in time must not overflow
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::micro>(std::min(us, longest_us)));
}

/// Communicators are made by all processes in one order, whatever part of the plan is theirs.
void make_communicators(CudaWorld& world, const Plan& plan) {
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps) {
        if (const auto* collective = std::get_if<Collective>(&step))
          world.communicator(comm_key(plan, collective->communicator, collective->resources));
        if (const auto* exchange = std::get_if<Exchange>(&step))
          world.communicator(comm_key(plan, exchange->communicator, exchange->resources));
      }
}

}  // namespace

CudaExecutable::CudaExecutable(CudaWorld& world, const Plan& plan)
    : world_(world), plan_(plan), memory_(plan_, world), launchers_(world.local()), start_(world) {
  make_communicators(world, plan_);
  for (LocalRank& local : world.local()) {
    const DeviceGuard guard(local.device());
    ranks_.push_back(std::make_unique<RankProgram>(world, plan_, memory_, local));
    times_.emplace_back();
  }
  world.add(*this);  // last: what throws before has no destructor
}

void CudaExecutable::drop_graphs() noexcept {
  for (const auto& rank : ranks_) rank->drop_graphs();
}

std::int64_t CudaExecutable::internal_bytes(int rank) const {
  std::int64_t bytes = memory_.internal_bytes(rank);
  for (const auto& program : ranks_)
    if (program->local().rank() == rank) bytes += program->bytes();
  return bytes;
}

RunReport CudaExecutable::run(const RunOptions& options) {
  if (options.epochs < 1)
    throw InvalidArgument(fmt::format("epochs = {} must be at least 1", options.epochs));
  if (!(options.timeout_us > 0))
    throw InvalidArgument(fmt::format("timeout = {} us must be positive", options.timeout_us));
  world_.health().require();
  try {
    memory_.map_bound();
    launchers_.run([&](std::size_t index) { prepare(index, options); });
    if (connected_ && !options.trace && !replays_) replays_ = try_graphs(options);
    if (!options.trace && replays_ == By::graph && stale())
      launchers_.run([&](std::size_t index) { ranks_[index]->capture(); });
    const By by = options.trace ? By::traced_streams : replays_.value_or(By::streams);
    start(by, options);
    wait(options);
    connected_ = true;
    return report(options);
  } catch (...) {
    fail(std::current_exception());
  }
}

void CudaExecutable::prepare(std::size_t index, const RunOptions& options) {
  ranks_[index]->local().set_timeout_us(options.timeout_us);
  ranks_[index]->prepare();
}

/// Whether a rank of any process has bound a matrix anew: what all have captured together, all capture again.
bool CudaExecutable::stale() {
  const bool own = std::ranges::any_of(ranks_, [](const auto& rank) { return rank->stale(); });
  return world_.all_max({own ? 1.0 : 0.0})[0] > 0;
}

/// Captures the plan and replays it once. Nobody promises that the branches of a graph run side by side, as
/// lanes that wait for each other have to: where they do not, waits end by a short deadline, and streams
/// serve instead.
CudaExecutable::By CudaExecutable::try_graphs(const RunOptions& options) {
  RunOptions trial = options;
  trial.epochs = 1;
  trial.timeout_us = std::min(options.timeout_us, trial_us);
  launchers_.run([&](std::size_t index) {
    prepare(index, trial);
    ranks_[index]->capture();
  });
  start(By::graph, trial);
  const bool done = drained(trial.timeout_us * 2);
  if (!done) {
    for (const auto& rank : ranks_) rank->local().abort();
    if (!drained(options.timeout_us)) throw Timeout("a captured plan did not end although its waits did");
  }
  const bool failed =
      !done || std::ranges::any_of(ranks_, [](const auto& rank) { return rank->local().aborted(); });
  const bool all_done = world_.all_max({failed ? 1.0 : 0.0})[0] == 0;
  for (const auto& rank : ranks_) {
    rank->local().resume();
    rank->local().set_timeout_us(options.timeout_us);
  }
  if (!all_done)
    spdlog::warn("{}: replayed as a graph its lanes wait for each other; streams serve it",
                 describe(plan_.problem));
  return all_done ? By::graph : By::streams;
}

/// The first run does not wait at the start line: kernels that wait could keep the library from connecting
/// ranks.
void CudaExecutable::start(By by, const RunOptions& options) {
  launchers_.run([&](std::size_t index) { launch(index, by, options); });
  if (!connected_) return;
  if (world_.local().size() < static_cast<std::size_t>(world_.size())) world_.barrier();
  start_.go();
}

void CudaExecutable::launch(std::size_t index, By by, const RunOptions& options) {
  RankProgram& rank = *ranks_[index];
  const cudaStream_t stream = rank.stream();
  if (connected_) start_.enqueue(index, rank.watch(), stream);
  times_[index].begin.record(stream);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    if (by == By::traced_streams)
      rank.enqueue_traced(stream, epoch);
    else if (by == By::graph)
      rank.replay(stream);
    else
      rank.enqueue(stream);
  }
  times_[index].end.record(stream);
}

/// Whether all ranks are done within that time.
bool CudaExecutable::drained(double timeout_us) const {
  const auto deadline = after(timeout_us);
  for (const Times& times : times_)
    while (!times.end.done()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  return true;
}

void CudaExecutable::wait(const RunOptions& options) {
  const auto deadline = after(options.timeout_us * (options.epochs + 1));
  auto look = Clock::now() + attention;
  for (std::size_t index = 0; index < ranks_.size();) {
    if (times_[index].end.done()) {
      ++index;
      continue;
    }
    const auto now = Clock::now();
    if (now > deadline)
      throw Timeout(fmt::format("rank {} has not finished within {}", ranks_[index]->local().rank(),
                                format_us(options.timeout_us)),
                    ranks_[index]->local().rank());
    if (now > look) {
      for (const auto& rank : ranks_)
        if (rank->local().aborted()) throw Timeout(diagnosis(), rank->local().rank());
      world_.watch();
      look = now + attention;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  for (const auto& rank : ranks_)
    if (rank->local().aborted()) throw Timeout(diagnosis(), rank->local().rank());
}

void CudaExecutable::fail(std::exception_ptr error) {
  world_.fail(error);
  if (auto first = world_.health().error()) std::rethrow_exception(first);
  std::rethrow_exception(error);
}

/// Who waited for what in vain.
std::string CudaExecutable::diagnosis() {
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

RunReport CudaExecutable::report(const RunOptions& options) {
  RunReport report;
  for (std::size_t index = 0; index < ranks_.size(); ++index) {
    report.elapsed_us =
        std::max(report.elapsed_us, 1e3 * times_[index].end.milliseconds_since(times_[index].begin));
    if (!options.trace) continue;
    const auto spans = ranks_[index]->spans(times_[index].begin);
    report.spans.insert(report.spans.end(), spans.begin(), spans.end());
  }
  report.elapsed_us = world_.all_max({report.elapsed_us})[0];
  return report;
}

void CudaExecutable::enqueue(int rank, cudaStream_t stream) {
  world_.health().require();
  for (const auto& program : ranks_) {
    if (program->local().rank() != rank) continue;
    if (program->local().aborted()) throw Timeout(diagnosis(), rank);
    const DeviceGuard guard(program->local().device());
    cudaStreamCaptureStatus capturing{};
    check(cudaStreamIsCapturing(stream, &capturing), "cudaStreamIsCapturing");
    if (capturing != cudaStreamCaptureStatusNone && !program->prepared())
      throw InvalidArgument("matrices were bound since the last run: run once before a capture", rank);
    program->prepare();
    return program->enqueue(stream);
  }
  throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
}

std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan) {
  if (!world.apart().empty())
    if (const std::string access = remote_access(plan); !access.empty())
      throw Unsupported(
          fmt::format("ranks do not reach each other's memory here, as {}: {}", world.apart(), access));
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps) require_served(plan, step);
  return std::make_unique<CudaExecutable>(world, plan);
}

}  // namespace shingle::cuda
