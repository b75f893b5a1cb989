// Measures how long an iteration takes on the host's clock.
#pragma once

#include <chrono>
#include <optional>

namespace shingle::nccl_tuner {

class Sampler {
 public:
  using Clock = std::chrono::steady_clock;

  /// Skips the timing of the next iterations, after a change or an interruption.
  void restart();
  /// Doubles the iterations per sample, for samples that differ too much.
  void lengthen() { strides_ *= 2; }
  /// True if the device has caught up since the last restart.
  bool settled() const { return settling_ == 0; }
  /// Called when an iteration begins. Returns the mean in µs at the last iteration of a sample.
  std::optional<double> on_begin(Clock::time_point now);

  /// Shorter iterations are timed several at a time.
  static constexpr double least_sample_us = 5000;

 private:
  /// Iterations until the device has caught up with the host, which runs ahead by the depth of its queues.
  static constexpr int settling_iterations = 3;
  int settling_ = settling_iterations + 1;  // iteration begins until one is timed
  int stride_ = 1;                          // iterations that are long enough to time together
  int strides_ = 1;                         // strides per sample
  int counted_ = 0;
  Clock::time_point begun_{};
};

}  // namespace shingle::nccl_tuner
