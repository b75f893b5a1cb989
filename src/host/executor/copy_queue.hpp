// A copy engine's queue on the clock: when its commands are with the engine, and when they are done.
//
// The bytes are copied by the lane's thread as a command is reached. What an engine adds to that is time
// (DMA collectives §3.2): the thread of the host that creates commands (control) and rings the doorbell
// (schedule), which may serve many engines in turn; the engine, which fetches them or polls; the copy; the
// notify (sync). Copies between two notifies share the engine's rate and are under way together.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "health.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

/// The launching threads of a world: each creates the commands of one batch at a time.
class Launchers {
 public:
  Launchers(const EnginePhases& phases, int count)
      : phases_(phases), busy_until_(static_cast<std::size_t>(count)) {}

  const EnginePhases& phases() const { return phases_; }

  /// When all commands of a rank's lane are with their engine, if the thread is asked now.
  Clock::time_point submit(const Lane& lane, int rank) {
    const Submission& how = lane.submission;
    return submit(launcher(lane, rank), static_cast<int>(lane.steps.size()),
                  1 + static_cast<int>(how.doorbells.size()));
  }
  static int launcher(const Lane& lane, int rank) {
    return lane.submission.launcher < 0 ? rank : lane.submission.launcher;
  }

  /// When the thread has written a place that engines poll, if it is asked now.
  Clock::time_point signal(int launcher) { return book(launcher, phases_.control_us); }

  /// When `commands` in `batches` are with their engine, if the thread is asked now.
  Clock::time_point submit(int launcher, int commands, int batches) {
    return book(launcher, commands * phases_.control_us + batches * phases_.schedule_us) +
           from_us(phases_.fetch_us);
  }

 private:
  Clock::time_point book(int launcher, double us) {
    const std::lock_guard lock(mutex_);
    auto& until = busy_until_[static_cast<std::size_t>(launcher)];
    until = std::max(until, Clock::now()) + from_us(us);
    return until;
  }

  EnginePhases phases_;
  std::mutex mutex_;
  std::vector<Clock::time_point> busy_until_;
};

class CopyQueue {
 public:
  explicit CopyQueue(const EnginePhases& phases) : phases_(phases) {}

  /// A command that writes `bytes` in all starts now, or as soon as commands before it let it; `delivered` is
  /// when the link has carried them, `beyond_us` what it takes beyond a copy.
  void start(double bytes, Clock::time_point delivered, double beyond_us) {
    const double us = phases_.gbps > 0 ? bytes / (phases_.gbps * 1e3) : 0;
    const auto begin = std::max(next_, Clock::now());
    next_ = begin + from_us(phases_.queued_us);
    writing_until_ = std::max(writing_until_, begin) + from_us(us);
    done_ = std::max({done_, delivered, writing_until_ + from_us(phases_.copy_us + beyond_us)});
  }
  /// When all commands so far are done.
  Clock::time_point done() const { return done_; }
  /// When a notify behind them is.
  Clock::time_point synchronised() const { return std::max(done_, Clock::now()) + from_us(phases_.sync_us); }

 private:
  EnginePhases phases_;
  Clock::time_point next_{}, writing_until_{}, done_{};
};

}  // namespace shingle::host
