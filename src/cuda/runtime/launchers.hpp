// One launching thread for each local rank.
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
  /// Must not run while a thread is stuck: it would wait for that thread.
  ~Launchers();
  Launchers(const Launchers&) = delete;
  Launchers& operator=(const Launchers&) = delete;

  /// Calls action(index of the local rank) on all threads at once, each with its device current, and waits
  /// for them. While waiting it calls watch() every few milliseconds; watch() throws if it finds a failure
  /// elsewhere.
  ///
  /// Throws the first exception of an action or of watch(). Throws UnnamedTimeout if a thread does not return
  /// by the deadline. Once a thread has failed, the others have ten seconds to return. A thread that does not
  /// return is stuck in a call to NCCL or the driver, and may still use objects that `action` holds.
  void run(std::function<void(std::size_t)> action, double timeout_us, const std::function<void()>& watch);

  /// True once a thread has failed in the current action: the other threads should return.
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
