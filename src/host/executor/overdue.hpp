// Deadlines of calls that cannot be cancelled.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "health.hpp"

namespace shingle::host {

/// Guards a blocking call of MPI. If the call is overdue, the process names the stopped ranks that this host
/// shows. It then exits with 1, and the launcher ends the other processes.
class Overdue {
 public:
  enum class Means {
    anybody_late,      ///< the call takes longer than `patience`
    somebody_stopped,  ///< a rank of this host is stopped for longer than `patience`
  };
  /// `what` must outlive this object.
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
