// Measuring a machine: its profile, from small plans that any backend can run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle {

struct ProfileOptions {
  std::optional<DType> dtype{};   ///< of what is timed; the backend's first native one, if nobody says
  int repeat = 5;                 ///< runs of each plan, of which the median counts
  std::optional<Machine> base{};  ///< has the figures that are not measured; the world's machine without
  /// Whether only computation beside communication is measured, and fitted together with the base's samples.
  bool contention_only = false;
  /// Chunks with which the world's library was told to move its collectives, which the program sees to, as
  /// NCCL reads them from its environment; 0: its own choice. With a size contention alone is measured.
  std::int64_t chunk_bytes = 0;
  double budget_us = 0;      ///< nothing new is measured after that time; 0: all is, whatever it takes
  double timeout_us = 30e6;  ///< deadline of every wait
  std::function<void(const std::string&)> progress{};  ///< told what is measured next, in one line
  std::function<void(double)> expects{};  ///< told beforehand how many seconds that may take, roughly
  /// Interquartile range of the runs of a plan over their median, above which it is run again, up to twice as
  /// often; 0: any is taken.
  double most_spread = 0;
};

/// What was not measured steadily.
struct Unsteady {
  std::string what;   ///< as progress calls it
  double spread = 0;  ///< median over its plans
};

struct Profiled {
  Machine machine;
  std::vector<Unsteady> unsteady{};  ///< spread above most_spread; the largest first
  std::vector<std::string> left{};   ///< what the budget did not reach
};
/// "tiles of 64x64 by 31%, memory by 27%".
std::string describe(const std::vector<Unsteady>& unsteady);

/// The machine of a world with what it does in so long: tiles of the shapes that the backend serves, passes,
/// copies, collectives of several sizes, ranks and workers, what a step and a signal cost, and what
/// communication and computation take from each other. What the backend cannot carry out, what has more ranks
/// than there are, and what the budget does not reach is as the base has it, and so are its sources. The
/// world's links and engines should not be paced. Collective over the world's processes. Every figure is the
/// median of its runs, the maximum over ranks. Throws InvalidArgument where the base has other workers, or
/// chunks are said of a world whose collectives share the cores of computation.
Machine profile(World& world, const ProfileOptions& options = {});
/// The same, with what varied too much to be relied on.
Profiled profile_steadily(World& world, const ProfileOptions& options);

}  // namespace shingle
