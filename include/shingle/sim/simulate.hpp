// The simulator: the time of a plan on a machine, in virtual time (docs/concepts/simulator.md).
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle {

struct SimOptions {
  int epochs = 1;          ///< back to back, with no barrier between ranks
  double noise = 0;        ///< standard deviation of every duration, relative to the duration, in [0, 1)
  std::uint64_t seed = 0;  ///< seed of the noise; equal seeds give equal results
  std::vector<double> slowdown{};  ///< by rank: factor on the time of its computation (a throttled clock,
                                   ///< FlashOverlap §4.2.3); empty: 1
  double worker_share =
      1;  ///< part of the machine's workers that this process may use, in (0, 1] (FlashOverlap §4.2.3)
};

/// Result of a simulated run.
struct Simulated {
  double makespan_us = 0;                    ///< from the begin to the end of the last lane, over all epochs
  std::vector<Span> spans;                   ///< ordered by begin; the same as a traced real run gives
  std::vector<std::vector<double>> busy_us;  ///< [planned rank][lane]: time with a step in progress
  std::vector<double> computing_us;          ///< by planned rank: time with a tiled step in progress
  std::vector<std::size_t>
      critical_path;        ///< indices of spans in order of time; each began when the one before it ended
  std::int64_t events = 0;  ///< events of the simulation: the unit of its own speed

  /// Time in which the rank that computes least does not compute: it waits, or its communication is exposed.
  double exposed_us() const;
};

/// Runs a plan in virtual time. Lanes run in order, and tiles by waves on the workers that communication
/// leaves. Collectives follow the machine's curves. Messages and commands of copy engines share links fairly.
/// Deterministic.
///
/// For a symmetric plan only the planned ranks run; data for another rank goes to the planned rank that
/// stands for it. The time is that of the whole world.
///
/// Throws InvalidArgument if the machine has too few figures (tiles, link), or if the plan cannot finish (run
/// verify() first). Also throws if the ranks of a symmetric plan differ, because of the machine's links,
/// noise, a slowdown, or threads that share cores.
Simulated simulate(const Plan& plan, const Machine& machine, const SimOptions& options = {});

/// Time of a cuBLASLt or oneDNN GEMM, m×n×k, on `workers` workers, with the tile that serves it best.
double library_gemm_us(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k, int workers);

}  // namespace shingle
