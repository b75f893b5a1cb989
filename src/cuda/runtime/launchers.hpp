// A thread for each local rank, which launches on its device.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "deadline.hpp"
#include "local_rank.hpp"

namespace shingle::cuda {

class Launchers {
 public:
  explicit Launchers(const std::vector<LocalRank>& local);
  /// Not where one is stuck: that would wait for it.
  ~Launchers();
  Launchers(const Launchers&) = delete;
  Launchers& operator=(const Launchers&) = delete;

  /// Calls action(index of the local rank) on all threads at once, each with its device current, and waits
  /// for them, looking now and then at the rest of the world by watch(), which throws what it finds. Throws
  /// what was thrown first; Timeout where a thread is not back by the deadline, or some time after another
  /// has failed. It is stuck then, in a call of a library, and may still use what `action` holds.
  void run(std::function<void(std::size_t)> action, double timeout_us, const std::function<void()>& watch);

  /// Whether somebody has failed in the action that runs: there is no use in going on.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  bool stuck() const { return stuck_; }

 private:
  void serve(std::size_t index);
  void note(std::exception_ptr error);

  std::vector<int> ranks_, devices_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::function<void(std::size_t)> action_;
  std::uint64_t generation_ = 0;
  std::size_t running_ = 0;
  std::vector<bool> back_;  // by index
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  bool stuck_ = false;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shingle::cuda
