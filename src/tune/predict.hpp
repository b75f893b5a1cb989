// Closed-form prediction of the time of a GEMM and its collective.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "waves.hpp"

namespace shingle {

/// Progress of a partition after one of its groups.
struct Progress {
  double sent_us = 0;      ///< end of its collective
  double restored_us = 0;  ///< time when its tiles are back in order
};

/// Time when a collective ends that begins at `begin_us` and takes `send_us` alone. The part beside the GEMM
/// takes longer. Monotone in both arguments, also in floating point.
inline double send_ends_us(const WaveModel& model, double begin_us, double send_us) {
  const double slower = 1 + model.slowdown, computed = model.computed_us.back();
  const double beside = begin_us + send_us * slower;
  const double across = computed + (send_us - (computed - begin_us) / slower);
  const double behind = begin_us + send_us;
  return std::max(behind, std::min(beside, across));
}

/// Adds one more group, [first, end), whose collective takes `send_us` alone (FlashOverlap Alg. 1, lines
/// 10-22). The collective begins once the group is computed and signalled and the collective before it is
/// done.
inline Progress advance(const WaveModel& model, const Progress& before, std::int64_t first, std::int64_t end,
                        double send_us) {
  const auto at = [](const std::vector<double>& waves, std::int64_t w) {
    return waves[static_cast<std::size_t>(w)];
  };
  const double ready_us = at(model.computed_us, end) + model.signal_us;
  const double idle_us = before.sent_us + (first > 0 ? model.sync_us : 0);
  const double sent_us = send_ends_us(model, std::max(ready_us, idle_us), send_us);
  if (model.restored_us.empty()) return {sent_us, sent_us};
  // Restore kernels run in one lane, after the GEMM and one after the other.
  const double free_us = std::max(before.restored_us, model.computed_us.back());
  return {sent_us, std::max(free_us, sent_us) + model.restore_us +
                       (at(model.restored_us, end) - at(model.restored_us, first))};
}

/// Time from the start until the last group is sent, in µs. If each group has a restore kernel, until the
/// last group is restored. A single pass over all groups is not included, because it costs the same for every
/// partition. Throws InvalidArgument if a group is empty or the groups do not add up to all waves.
double predict_us(const WaveModel& model, const std::vector<std::int64_t>& group_waves);

/// Time of the GEMM, then one collective. Takes a lone_wave_model().
double sequential_us(const WaveModel& lone);

/// Time of perfect overlap (FlashOverlap §6.4): the GEMM, then the communication of its last wave. If all
/// communication takes longer than the GEMM: the first wave, then all communication. Takes a
/// lone_wave_model().
double bound_us(const WaveModel& lone);

}  // namespace shingle
