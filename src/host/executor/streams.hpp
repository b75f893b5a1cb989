// Streams of the host backend: work that is enqueued on a rank and runs in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "health.hpp"

namespace shingle::host {

/// One stream for each local rank. Its thread starts with the first work.
class Streams {
 public:
  explicit Streams(Health& health) : health_(health) {}
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  /// Runs `work` after all earlier work of the rank. Waits while the stream is full. Work is dropped once the
  /// world has failed. An exception of the work is a failure of the world.
  void enqueue(int rank, std::function<void()> work);
  /// Waits until all enqueued work is done, or has been dropped. Needs no deadline: the lanes that the work
  /// runs have deadlines wherever they can be stuck.
  void synchronize();

 private:
  struct Stream {
    std::deque<std::function<void()>> waiting;
    bool busy = false;
    std::thread thread;
  };
  void serve(Stream& stream);
  bool idle() const;

  Health& health_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Stream> streams_;  // by rank
  bool quit_ = false;
};

}  // namespace shingle::host
