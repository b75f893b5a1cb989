// Watches the epochs of the local ranks: failures anywhere, and progress.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backlog.hpp"
#include "deadline.hpp"
#include "launchers.hpp"
#include "world.hpp"

namespace shingle::cuda {

class Monitor {
 public:
  explicit Monitor(CudaWorld& world);
  void add(const LocalRank& local, const Backlog& backlog) { ranks_.push_back({&local, &backlog}); }

  /// Timeout of one wait, also for kernels.
  double timeout_us() const { return timeout_us_; }
  const WaitTimeout& of_kernels() const { return *of_kernels_; }
  void set_timeout_us(double timeout_us);

  /// Starts the deadline for progress anew.
  void begin();
  /// Throws if a rank has failed, or if no epoch has ended for too long. Waits inside NCCL have no deadline
  /// of their own: while epochs are in flight, one must end within the timeout.
  void watch();
  /// Throws if waits of a local rank were ended.
  void require_sound() const;
  /// Breaks the world and throws if it has failed, or if an earlier epoch has.
  void require_working() const;
  /// Runs an action on all launching threads, and watches meanwhile (Launchers::run).
  void run_on_all(Launchers& launchers, std::function<void(std::size_t)> action, double timeout_us);
  /// Deadline for NCCL to connect ranks.
  double connect_us() const { return std::max(timeout_us_, least_connect_us); }
  /// Watches until done() is true.
  void wait_until(const std::function<bool()>& done);
  /// Waits until a stream of no epoch is idle. Such work is short, so the host polls without naps at first.
  void wait_for(const Stream& stream) const;
  /// Waits until the driver's queues take an epoch of that many launches. A launch into a full queue would
  /// block without a deadline. Throws Timeout once failed() is true.
  void make_room(int rank, Backlog& backlog, std::size_t launches, const std::function<bool()>& failed) const;

 private:
  struct Rank {
    const LocalRank* local = nullptr;
    const Backlog* backlog = nullptr;
  };
  void require_progress();
  std::string diagnosis() const;

  CudaWorld& world_;
  std::vector<Rank> ranks_;
  double timeout_us_;
  const Kept<WaitTimeout> of_kernels_;
  std::size_t ended_ = 0;         // epochs of the local ranks that had ended at the last check
  Clock::time_point next_end_{};  // deadline for the next epoch to end
};

}  // namespace shingle::cuda
