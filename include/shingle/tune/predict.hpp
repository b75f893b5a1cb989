// How long a GEMM and its collective take, predicted in closed form.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/tune/waves.hpp"

namespace shingle {

/// When the collective of a group ends (FlashOverlap Alg. 1, lines 10-22): it begins when the group is
/// computed and signalled and the collective before it is over, at `idle_us`.
inline double sent_us(const WaveModel& model, double idle_us, std::int64_t end, double send_us) {
  const double ready_us = model.computed_us[static_cast<std::size_t>(end)] + model.signal_us;
  return (ready_us > idle_us ? ready_us : idle_us) + send_us;
}

/// From the start until the last group is sent, in µs; the pass that puts the tiles back is not in it, as it
/// costs the same whatever the groups. Throws InvalidArgument where a group is empty or they are not all
/// waves together.
double predict_us(const WaveModel& model, const std::vector<std::int64_t>& group_waves);

/// The GEMM, then one collective; of a lone_wave_model().
double sequential_us(const WaveModel& lone);

/// What perfect overlap would take (FlashOverlap §6.4): the GEMM and the communication of its last wave, or,
/// where all communication takes longer than the GEMM, the first wave and all communication. Of a
/// lone_wave_model().
double bound_us(const WaveModel& lone);

}  // namespace shingle
