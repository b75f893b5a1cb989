#include "predict.hpp"

#include <fmt/format.h>

#include "shingle/base/error.hpp"

namespace shingle {

double predict_us(const WaveModel& model, const std::vector<std::int64_t>& group_waves) {
  Progress at;
  std::int64_t done = 0;
  for (const std::int64_t waves : group_waves) {
    if (waves < 1 || waves > model.waves() - done)
      throw InvalidArgument(
          fmt::format("a group of {} waves after {} waves; there are {} in all", waves, done, model.waves()));
    at = advance(model, at, done, done + waves, model.send_us(done, done + waves));
    done += waves;
  }
  if (done != model.waves())
    throw InvalidArgument(fmt::format("the groups hold {} waves; expected {}", done, model.waves()));
  return at.restored_us;
}

double sequential_us(const WaveModel& lone) {
  return lone.computed_us.back() + lone.send_us(0, lone.waves());
}

double bound_us(const WaveModel& lone) {
  const std::int64_t waves = lone.waves();
  if (waves == 0) return lone.computed_us.back();
  const double gemm_us = lone.computed_us.back(), all_us = lone.send_us(0, waves);
  if (gemm_us >= all_us) return gemm_us + lone.send_us(waves - 1, waves);
  return lone.computed_us[1] + all_us;
}

}  // namespace shingle
