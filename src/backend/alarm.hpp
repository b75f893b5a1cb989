// Something that is done if something else takes too long.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shingle {

/// Calls `ring` once, from a thread of its own, unless the alarm is destroyed before.
class Alarm {
 public:
  Alarm(std::chrono::steady_clock::duration after, std::function<void()> ring);
  /// Waits for `ring` where it has begun.
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool off_ = false;
  std::thread thread_;
};

/// From now on exit() ends the process in time, with its status, even where an exit handler or the destructor
/// of a static object blocks, as those of drivers may. The first call counts.
void bound_exit(std::chrono::steady_clock::duration patience);

}  // namespace shingle
