// How long an iteration takes, on the host's clock.
#pragma once

#include <chrono>
#include <optional>

namespace shingle::nccl_tuner {

class Sampler {
 public:
  using Clock = std::chrono::steady_clock;

  /// After a change, or an interruption: the next iterations are not timed.
  void restart();
  /// An iteration begins. The mean of as many as make a sample, in us, with the last of them.
  std::optional<double> on_begin(Clock::time_point now);

 private:
  /// Until the device has caught up with the host, which runs ahead by what its queues hold.
  static constexpr int settling_iterations = 3;
  /// Shorter iterations are timed several at a time.
  static constexpr double least_sample_us = 5000;

  int settling_ = settling_iterations + 1;  // beginnings until one is timed
  int counted_ = 0, stride_ = 1;
  Clock::time_point begun_{};
};

}  // namespace shingle::nccl_tuner
