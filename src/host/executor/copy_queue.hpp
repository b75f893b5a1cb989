// Simulated timing of a copy engine's queue: when the engine has its commands, and when the commands are
// done.
//
// The lane's thread copies the bytes when it reaches a command. This file adds the phases of an engine (DMA
// collectives §3.2). A host thread creates commands (control) and rings the doorbell (schedule); it may serve
// many engines in turn. The engine fetches the commands or polls, copies, and notifies (sync). Copies between
// two notifies overlap and share the engine's rate.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

#include "health.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

/// The launching threads of a world. Each creates the commands of one batch at a time.
class Launchers {
 public:
  Launchers(const EnginePhases& phases, int count)
      : phases_(phases), busy_until_(static_cast<std::size_t>(count)) {}

  const EnginePhases& phases() const { return phases_; }

  /// Time when the engine has all commands of a rank's lane, if the launching thread is asked now.
  Clock::time_point submit(const Lane& lane, int rank) {
    const Submission& how = lane.submission;
    return submit(launcher(lane, rank), static_cast<int>(lane.steps.size()),
                  1 + static_cast<int>(how.doorbells.size()));
  }
  static int launcher(const Lane& lane, int rank) {
    return lane.submission.launcher < 0 ? rank : lane.submission.launcher;
  }

  /// Time when the launching thread has written a flag that engines poll, if it is asked now.
  Clock::time_point signal(int launcher) { return book(launcher, phases_.control_us); }

  /// Time when the engine has `commands` in `batches`, if the launching thread is asked now.
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

  /// Starts a command that writes `bytes` in all, now or as soon as earlier commands permit. `delivered` is
  /// the time when the link has carried the bytes. `beyond_us` is what the command takes beyond a copy.
  void start(double bytes, Clock::time_point delivered, double beyond_us) {
    const double us = phases_.gbps > 0 ? bytes / (phases_.gbps * 1e3) : 0;
    const auto begin = std::max(next_, Clock::now());
    next_ = begin + from_us(phases_.queued_us);
    writing_until_ = std::max(writing_until_, begin) + from_us(us);
    done_ = std::max({done_, delivered, writing_until_ + from_us(phases_.copy_us + beyond_us)});
  }
  /// Time when all commands so far are done.
  Clock::time_point done() const { return done_; }
  /// Time when a notify after them is done.
  Clock::time_point synchronised() const { return std::max(done_, Clock::now()) + from_us(phases_.sync_us); }

 private:
  EnginePhases phases_;
  Clock::time_point next_{}, writing_until_{}, done_{};
};

}  // namespace shingle::host
