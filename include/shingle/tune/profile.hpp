// Measures a machine: derives its profile from small plans that any backend can run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle {

struct ProfileOptions {
  std::optional<DType> dtype{};   ///< type of the plans; empty: the backend's first native type
  int repeat = 5;                 ///< runs of each plan; the median counts
  std::optional<Machine> base{};  ///< figures for what is not measured; empty: the world's machine
  /// True: measures only contention, and fits it together with the base's samples.
  bool contention_only = false;
  /// Chunk size, in bytes, that NCCL uses in this world; 0: NCCL's choice. The caller must set it, because
  /// NCCL reads it from the environment. If set, only contention is measured.
  std::int64_t chunk_bytes = 0;
  double budget_us = 0;      ///< nothing new is measured after this time; 0: no limit
  double timeout_us = 30e6;  ///< deadline of every wait
  std::function<void(const std::string&)> progress{};  ///< receives one line that says what is measured next
  std::function<void(double)> expects{};  ///< receives the expected duration in seconds, before the first run
  /// Limit on the interquartile range of a plan's runs, relative to their median. Above it the plan is run
  /// again, up to twice as often. 0: no limit.
  double most_spread = 0;
};

/// A figure that was not measured steadily.
struct Unsteady {
  std::string what;   ///< the name that `progress` uses
  double spread = 0;  ///< median over its plans
};

struct Profiled {
  Machine machine;
  std::vector<Unsteady> unsteady{};  ///< figures with a spread above most_spread, the largest first
  std::vector<std::string> left{};   ///< figures that the budget did not reach
};
/// "tiles of 64x64 by 31%, memory by 27%".
std::string describe(const std::vector<Unsteady>& unsteady);

/// Measures the machine of a world. It times tiles of the shapes that the backend serves, passes, copies, and
/// collectives of several sizes, ranks and workers. It also times steps, signals and contention.
///
/// The base supplies each figure that is not measured, with its source. A figure is not measured if the
/// backend does not serve it, the world has too few ranks, or the budget does not reach it. The world's links
/// and engines should not be paced. Every figure is the median of its runs, the maximum over ranks.
///
/// Collective over the world's processes. Throws InvalidArgument if the base has another number of workers.
/// Throws it also if chunk_bytes is set and the world has one rank, or its collectives run on the cores of
/// the computation.
Machine profile(World& world, const ProfileOptions& options = {});
/// As profile(), and also reports what varied too much to rely on.
Profiled profile_steadily(World& world, const ProfileOptions& options);

}  // namespace shingle
