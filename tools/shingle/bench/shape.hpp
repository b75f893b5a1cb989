// One shape of `bench`: planned, then measured beside the sequential plan.
#pragma once

#include <functional>

#include "shingle/bench/contenders.hpp"
#include "shingle/bench/rows.hpp"
#include "shingle/common/console.hpp"

namespace shingle::cli {

/// A plan to measure, or the reason why there is none.
struct Entry {
  std::string contender;
  Candidate candidate;
  std::optional<Metrics> predicted{};
  std::vector<Entry> rivals{};  ///< plans between which a measurement decides; empty: decided
};

/// A problem and its plans to measure. The first entry is the sequential plan.
struct Shape {
  NamedProblem named;
  std::vector<Entry> entries;
};

struct ShapeOptions {
  std::vector<Contender> contenders;
  int confirm = 0;                                    ///< for `auto`: number of mechanisms to measure first
  TuneCache* cache = nullptr;                         ///< of params found before
  std::function<std::string(const Plan&)> refuses{};  ///< for `auto` (TuneOptions)
};

/// Plans the entries. Predicts times if the machine has figures. Thread-safe.
Shape plan_shape(const NamedProblem& named, const Target& target, const ShapeOptions& options);

/// How much of each result is compared with the reference, before its timing and after it.
enum class Checked : std::uint8_t { none, sampled, full };

struct BenchOptions {
  MeasureOptions measure;
  Checked checked = Checked::sampled;
  WorldFlags where;
  ProcessLaunch launch;
  std::string backend;  ///< its name in the rows
  std::uint64_t seed = 0;
};

/// A failure after which the world cannot run anything.
class BrokenWorld : public Error {
 public:
  using Error::Error;
};

/// Measures all entries of a shape, each in turn with the sequential plan, on shared matrices. `emit` gets
/// each row once it is ready. A failure becomes a row with the reason, and the other entries go on. After a
/// failure that broke the world, throws BrokenWorld once that row is out. Collective.
void bench_shape(World& world, const Shape& shape, const BenchOptions& options, Progress& progress,
                 const std::function<void(BenchRow)>& emit);

}  // namespace shingle::cli
