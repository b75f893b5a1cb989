// How long a GEMM and its collective take, predicted in closed form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "waves.hpp"

namespace shingle {

/// Where a partition stands behind one of its groups.
struct Progress {
  double sent_us = 0;      ///< its collective is over
  double restored_us = 0;  ///< its tiles are back in their places
};

/// When a collective that begins at `begin_us` and takes `send_us` alone ends: what of it is beside the GEMM
/// takes longer. Never falls as either grows, nor does it in floating point.
inline double send_ends_us(const WaveModel& model, double begin_us, double send_us) {
  const double slower = 1 + model.slowdown, computed = model.computed_us.back();
  const double beside = begin_us + send_us * slower;
  const double across = computed + (send_us - (computed - begin_us) / slower);
  const double behind = begin_us + send_us;
  return std::max(behind, std::min(beside, across));
}

/// One more group, [first, end), whose collective takes `send_us` alone (FlashOverlap Alg. 1, lines 10-22):
/// it begins when the group is computed and signalled and the collective before it is over.
inline Progress advance(const WaveModel& model, const Progress& before, std::int64_t first, std::int64_t end,
                        double send_us) {
  const auto at = [](const std::vector<double>& waves, std::int64_t w) {
    return waves[static_cast<std::size_t>(w)];
  };
  const double ready_us = at(model.computed_us, end) + model.signal_us;
  const double idle_us = before.sent_us + (first > 0 ? model.sync_us : 0);
  const double sent_us = send_ends_us(model, std::max(ready_us, idle_us), send_us);
  if (model.restored_us.empty()) return {sent_us, sent_us};
  // Passes follow the GEMM and one another in their lane.
  const double free_us = std::max(before.restored_us, model.computed_us.back());
  return {sent_us, std::max(free_us, sent_us) + model.restore_us +
                       (at(model.restored_us, end) - at(model.restored_us, first))};
}

/// From the start until the last group is sent, in µs, and, where each group is restored by a kernel of its
/// own, restored; a pass over all groups is not in it, as it costs the same whatever they are. Throws
/// InvalidArgument where a group is empty or they are not all waves together.
double predict_us(const WaveModel& model, const std::vector<std::int64_t>& group_waves);

/// The GEMM, then one collective; of a lone_wave_model().
double sequential_us(const WaveModel& lone);

/// What perfect overlap would take (FlashOverlap §6.4): the GEMM and the communication of its last wave, or,
/// where all communication takes longer than the GEMM, the first wave and all communication. Of a
/// lone_wave_model().
double bound_us(const WaveModel& lone);

}  // namespace shingle
