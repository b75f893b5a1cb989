// The least-squares fit of what computation and communication take from each other (Lagom Eq. 4-6).
#pragma once

#include <string>

#include "shingle/machine/machine.hpp"

namespace shingle::tuning {

/// How far the predicted times of a sample are from the measured ones, over these.
struct Residual {
  double product = 0;     ///< of the product beside collectives
  double collective = 0;  ///< of the collective beside products
};
Residual residual_of(const Machine& machine, const ContentionSample& sample);

/// The contention of `machine` fitted on its samples, with the residuals; what they do not tell stays. Of
/// samples whose collectives have workers of their own: V's `channel_gbps` and `chunk_bytes` (where there
/// are several chunk sizes), `memory_share`, `chunk_us` and `collective_slowdown`; of others `steals` and
/// `wake_us`. Where a slow-down is in proportion to V, so that V itself cannot be told, that V of those that
/// fit counts which is nearest to three times the bytes on the wire: read, received and written.
Contention fit_contention(const Machine& machine);

/// "V = NC · 36.0 GB/s · C / (C + 64.0 KiB) …", with the residuals and the sample that is farthest off.
std::string describe_fit(const Machine& machine);

}  // namespace shingle::tuning
