// The least-squares fit of how much computation and communication slow each other down (Lagom Eq. 4-6).
#pragma once

#include <string>

#include "shingle/machine/machine.hpp"

namespace shingle::tuning {

/// Ratio of predicted to measured time of a sample, minus 1.
struct Residual {
  double product = 0;     ///< of the product or other computation beside collectives
  double collective = 0;  ///< of the collective beside products
};
Residual residual_of(const Machine& machine, const ContentionSample& sample);

/// True if a pass took longer by most of a collective that takes much longer than the pass. It then waited
/// until the collective had ended, which is no slow-down in proportion.
bool waited_for_one(const ContentionSample& sample);

/// Returns the contention of `machine` fitted on its samples, with the residuals. Fields that the samples do
/// not determine keep their values.
///
/// If collectives have workers of their own, the fit sets V's `channel_gbps` and `chunk_bytes` (with several
/// chunk sizes), `memory_share`, `misses`, `chunk_us` and `collective_slowdown`. Otherwise it sets `steals`
/// and `wake_us`.
///
/// Slow-downs of products in proportion to V do not determine V itself; those of passes do. Without samples
/// of passes, the fit takes the V nearest to three times the bytes on the wire: read, received and written.
Contention fit_contention(const Machine& machine);

/// Returns "V = NC · 36.0 GB/s · C / (C + 64.0 KiB) …", with the residuals and the worst sample.
std::string describe_fit(const Machine& machine);

}  // namespace shingle::tuning
