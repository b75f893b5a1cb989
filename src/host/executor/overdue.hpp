// Deadlines of calls that nobody can give up.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "health.hpp"

namespace shingle::host {

/// Guards a blocking call of a library. If the call is overdue, the process says so, with the ranks that are
/// stopped as far as this host shows them, and exits with 1: a launcher then ends the others.
class Overdue {
 public:
  enum class Means {
    anybody_late,      ///< the call takes longer than `patience`
    somebody_stopped,  ///< a rank of this host is stopped for longer than `patience`
  };
  /// `what` outlives it.
  Overdue(const char* what, Clock::duration patience, Means means);
  ~Overdue();
  Overdue(const Overdue&) = delete;
  Overdue& operator=(const Overdue&) = delete;

 private:
  void watch();

  const char* what_;
  Clock::duration patience_;
  Means means_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace shingle::host
