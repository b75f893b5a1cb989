// End events of the epochs in flight.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "cuda/raii/stream.hpp"

namespace shingle::cuda {

/// The driver's queues are finite, and a launch into a full queue blocks without a deadline. Callers
/// therefore check full() before they enqueue an epoch.
class Backlog {
 public:
  /// Bounds the epochs in flight, and their launches. One epoch always fits.
  explicit Backlog(std::size_t epochs, std::size_t most_launches = ~std::size_t{0})
      : most_launches_(most_launches), ends_(epochs), launches_(epochs, 0) {}

  int most() const { return static_cast<int>(ends_.size()); }
  /// True if an epoch of that many launches must wait until an earlier one has ended.
  bool full(std::size_t launches) {
    const auto fits = [&] {
      return count_ == oldest_ ||
             (count_ - oldest_ < ends_.size() && in_flight_ + launches <= most_launches_);
    };
    while (!fits() && ends_[oldest_ % ends_.size()].done()) {
      in_flight_ -= launches_[oldest_ % ends_.size()];
      ++oldest_;
    }
    return !fits();
  }
  /// Number of epochs known to have ended. May be called while another thread adds.
  std::size_t ended() const {
    const std::size_t count = count_;
    std::size_t under_way = 0;
    while (under_way < std::min(count, ends_.size()) && !ends_[(count - 1 - under_way) % ends_.size()].done())
      ++under_way;
    return count - under_way;
  }
  /// Moves the end of the last epoch behind the stream's work so far.
  void extend(cudaStream_t stream) {
    if (count_ > 0) last().record(stream);
  }
  std::size_t added() const { return count_; }
  /// True if all added epochs have ended.
  bool empty() const { return count_ == 0 || last().done(); }
  /// Orders all later work of the stream after the last epoch.
  void follow(cudaStream_t stream) const {
    if (count_ > 0) last().make_wait(stream);
  }
  /// Records the end of an epoch that the caller has enqueued to the stream, after all earlier epochs.
  void add(cudaStream_t stream, std::size_t launches) {
    ends_[count_ % ends_.size()].record(stream);
    launches_[count_ % ends_.size()] = launches;
    in_flight_ += launches;
    ++count_;
  }

 private:
  const Event& last() const { return ends_[(count_ - 1) % ends_.size()]; }

  std::size_t most_launches_;
  std::vector<Event> ends_;
  std::atomic<std::size_t> count_{0};
  // Of the launching thread. Epochs from `oldest_` on are not known to have ended.
  std::vector<std::size_t> launches_;
  std::size_t oldest_ = 0, in_flight_ = 0;
};

}  // namespace shingle::cuda
