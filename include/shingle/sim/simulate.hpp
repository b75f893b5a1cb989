// The simulator: how long a plan takes on a machine, in virtual time (docs/concepts/simulator.md).
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle {

struct SimOptions {
  int epochs = 1;                  ///< back to back, with no barrier between ranks
  double noise = 0;                ///< standard deviation of every duration, relative to it
  std::uint64_t seed = 0;          ///< of the noise: equal seeds, equal results
  std::vector<double> slowdown{};  ///< by rank: its computation takes so many times as long (a throttled
                                   ///< clock, FlashOverlap §4.2.3); empty: 1
  double worker_share = 1;         ///< of the machine's workers, those that this process may use (§4.2.3)
};

/// What a simulated run did.
struct Simulated {
  double makespan_us = 0;                    ///< from the begin to the end of the last lane, all epochs
  std::vector<Span> spans;                   ///< by begin; as a real run traces them
  std::vector<std::vector<double>> busy_us;  ///< [planned rank][lane]: in which a step of it was under way
  std::vector<double> computing_us;        ///< by planned rank: in which any of its tiled steps was under way
  std::vector<std::size_t> critical_path;  ///< spans, in order of time: each began when the one before ended
  std::int64_t events = 0;                 ///< of the simulation: what its own speed is counted in

  /// Time in which the rank that computes least does not compute: it waits, or communicates with nothing
  /// beside it.
  double exposed_us() const;
};

/// Runs a plan in virtual time: lanes in order, tiles by waves on the workers that communication leaves,
/// collectives on the machine's curves, messages and commands of copy engines on links that are shared
/// fairly. Deterministic. Of a symmetric plan the ranks that are planned run, and what they send to others
/// comes to those that stand for them; the time is that of the whole world. Throws InvalidArgument where the
/// machine has too few figures to tell times (tiles, link), where the plan cannot finish (say `verify`
/// first), or where ranks stand for others that differ from them: by the machine's links, noise, a
/// slowdown, or threads that share cores.
Simulated simulate(const Plan& plan, const Machine& machine, const SimOptions& options = {});

/// A GEMM of a library, m×n×k, on all of a machine's workers: by the tile that serves it best.
double library_gemm_us(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k, int workers);

}  // namespace shingle
