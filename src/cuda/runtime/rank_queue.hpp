// The order of a rank's epochs on its device, and the streams of their lanes.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "backlog.hpp"
#include "cuda/commands/written.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/stream.hpp"
#include "lane_priority.hpp"

namespace shingle::cuda {

/// Epochs run in the order of the calls, on any mix of streams. The rank's device must be current in all
/// functions.
class RankQueue {
 public:
  /// Bounds the epochs in flight, and their launches.
  explicit RankQueue(std::size_t epochs, std::size_t most_launches = ~std::size_t{0})
      : backlog_(epochs, most_launches), written_(epochs) {
    reserve(1);
  }

  void reserve(std::size_t lanes) {
    while (streams_.size() < lanes) {
      streams_.emplace_back();
      ended_.emplace_back();
    }
  }
  std::size_t lanes() const { return streams_.size(); }
  /// The queue's own stream, for epochs without a stream of the user.
  cudaStream_t stream() const { return streams_.front().get(); }
  /// The stream of a lane, in an epoch that begins on `stream`, with the lane_priority().
  cudaStream_t of(std::size_t lane, cudaStream_t stream, bool urgent) const {
    if (lane == 0) return stream;
    const int priority = priority_beside(stream, urgent);
    return priority == 0 ? streams_[lane].get() : urgent_.at({lane, priority}).get();
  }

  /// Enqueues one epoch of `launches` launches by enqueue(), after earlier epochs. The backlog must have
  /// room.
  template <class Enqueue>
  void add(cudaStream_t stream, std::size_t launches, const Outputs& outputs, Enqueue&& enqueue) {
    follow(stream);
    written_.note(outputs);
    try {
      enqueue();
    } catch (...) {
      backlog_.add(stream,
                   launches);  // launches that were enqueued before the failure also need an end event
      throw;
    }
    backlog_.add(stream, launches);
  }
  /// The last epoch ends with the stream's work so far.
  void extend(cudaStream_t stream) {
    follow(stream);
    backlog_.extend(stream);
  }
  /// Makes the streams of high priority that an epoch on `stream` needs. By lane: true if it is urgent. They
  /// are made when they are first needed: streams that are not used would share hardware queues with those
  /// that are.
  void make_urgent(cudaStream_t stream, const std::vector<bool>& urgent) {
    for (std::size_t lane = 1; lane < urgent.size(); ++lane)
      if (const int priority = priority_beside(stream, urgent[lane]); priority < 0)
        urgent_.try_emplace({lane, priority}, priority);
  }
  /// Forks the streams of lanes from `stream`.
  void fork(cudaStream_t stream, const std::vector<bool>& urgent) {
    if (urgent.size() < 2) return;
    make_urgent(stream, urgent);
    begun_.record(stream);
    for (std::size_t lane = 1; lane < urgent.size(); ++lane) begun_.make_wait(of(lane, stream, urgent[lane]));
  }
  void join(cudaStream_t stream, const std::vector<bool>& urgent) {
    for (std::size_t lane = 1; lane < urgent.size(); ++lane) {
      ended_[lane].record(of(lane, stream, urgent[lane]));
      ended_[lane].make_wait(stream);
    }
  }

  Backlog& backlog() { return backlog_; }
  const Backlog& backlog() const { return backlog_; }
  Written& written() { return written_; }
  /// True if the device has finished everything that was enqueued, including an epoch that failed halfway.
  bool idle() const {
    return backlog_.empty() &&
           std::all_of(streams_.begin(), streams_.end(), [](const Stream& one) { return one.idle(); }) &&
           std::all_of(urgent_.begin(), urgent_.end(), [](const auto& one) { return one.second.idle(); });
  }

 private:
  /// Orders later work of the stream after the last epoch.
  void follow(cudaStream_t stream) {
    const unsigned long long id = id_of(stream);
    if (id != last_stream_) backlog_.follow(stream);
    last_stream_ = id;
  }

  static int priority_beside(cudaStream_t stream, bool urgent) {
    int priority = 0;
    check(cudaStreamGetPriority(stream, &priority), "cudaStreamGetPriority");
    return lane_priority(priority, urgent);
  }

  std::vector<Stream> streams_;                           // by lane
  std::map<std::pair<std::size_t, int>, Stream> urgent_;  // by lane and priority, below 0
  Event begun_;
  std::vector<Event> ended_;  // by lane
  Backlog backlog_;
  Written written_;                     // as many calls as the backlog
  unsigned long long last_stream_ = 0;  // id of the last epoch's stream
};

}  // namespace shingle::cuda
