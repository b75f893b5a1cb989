// Actions to run if something else takes too long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shingle {

/// Calls `ring` once, from a thread of its own, unless the alarm is destroyed first.
class Alarm {
 public:
  Alarm(std::chrono::steady_clock::duration after, std::function<void()> ring);
  /// Waits for `ring` to return if it has begun.
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool off_ = false;
  std::thread thread_;
};

/// From now on, exit() ends the process within `patience`, with its status. This holds even if an exit
/// handler or a static destructor blocks, as drivers' may. Only the first call counts.
void bound_exit(std::chrono::steady_clock::duration patience);

/// Held by the work of a detached thread. After bound_exit(), exit() first waits for such work, as later exit
/// handlers destroy what it uses; it ends the process without them if the work takes too long.
class ExitHold {
 public:
  ExitHold();
  ~ExitHold();
  ExitHold(const ExitHold&) = delete;
  ExitHold& operator=(const ExitHold&) = delete;
};

}  // namespace shingle
