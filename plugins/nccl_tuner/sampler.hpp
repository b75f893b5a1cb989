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
  /// Where samples differ too much: twice as many iterations a sample from now on.
  void lengthen() { strides_ *= 2; }
  /// An iteration begins. The mean of as many as make a sample, in us, with the last of them.
  std::optional<double> on_begin(Clock::time_point now);

 private:
  /// Until the device has caught up with the host, which runs ahead by what its queues hold.
  static constexpr int settling_iterations = 3;
  /// Shorter iterations are timed several at a time.
  static constexpr double least_sample_us = 5000;

  int settling_ = settling_iterations + 1;  // beginnings until one is timed
  int stride_ = 1;                          // iterations that are long enough to be timed
  int strides_ = 1;                         // whose mean is a sample
  int counted_ = 0;
  Clock::time_point begun_{};
};

}  // namespace shingle::nccl_tuner
