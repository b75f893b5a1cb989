// The threads of a rank that compute tiles beside its lanes.
#pragma once

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "health.hpp"
#include "worker.hpp"

namespace shingle::host {

/// Work that any number of threads may join. Each thread returns when nothing is left to claim.
class Job {
 public:
  virtual ~Job() = default;
  virtual void work(Worker& worker) = 0;
};

/// Helpers join any job with room. A job never waits for helpers: the calling lane works too, so a busy pool
/// only costs time.
class Pool {
 public:
  /// Pins the helpers to `cores`, unless it is empty.
  Pool(int helpers, const std::vector<int>& cores, Health& health);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int helpers() const { return static_cast<int>(threads_.size()); }
  /// Works on the job with the calling thread as `worker` and at most `helpers` other threads. Returns when
  /// all of them have left the job.
  void run(Job& job, Worker& worker, int helpers);

 private:
  struct Open {
    Job* job;
    int room;
    int inside;
  };
  void help(const std::vector<int>& cores);
  void stop();
  void close(std::list<Open>::iterator open);

  Health& health_;
  std::mutex mutex_;
  std::condition_variable opened_, left_;
  std::list<Open> open_;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shingle::host
