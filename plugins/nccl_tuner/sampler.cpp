#include "sampler.hpp"

#include <algorithm>
#include <cmath>

namespace shingle::nccl_tuner {

void Sampler::restart() {
  settling_ = settling_iterations * stride_ + 1;
  counted_ = 0;
}

std::optional<double> Sampler::on_begin(Clock::time_point now) {
  if (settling_ > 0) {
    if (--settling_ == 0) begun_ = now;
    return std::nullopt;
  }
  if (++counted_ < stride_ * strides_) return std::nullopt;
  const double sample_us = std::chrono::duration<double, std::micro>(now - begun_).count();
  const double iteration_us = sample_us / counted_;
  begun_ = now;
  counted_ = 0;
  if (sample_us >= least_sample_us / 2) return iteration_us;
  constexpr double longest_stride = 1 << 20;
  stride_ = static_cast<int>(
      std::clamp(std::ceil(least_sample_us / std::max(iteration_us, 1e-3)), 1.0, longest_stride));
  restart();
  return std::nullopt;
}

}  // namespace shingle::nccl_tuner
