// One shape of `bench`: planned, then measured beside the sequential plan.
#pragma once

#include <functional>

#include "shingle/bench/contenders.hpp"
#include "shingle/bench/rows.hpp"
#include "shingle/common/console.hpp"

namespace shingle::cli {

/// A plan to be measured, or why there is none.
struct Entry {
  std::string contender;
  Candidate candidate;
  std::optional<Metrics> predicted{};
  std::vector<Entry> rivals{};  ///< of mechanisms between which a measurement decides; none: it is decided
};

/// A problem with what is to run on it; the first entry is the sequential plan.
struct Shape {
  NamedProblem named;
  std::vector<Entry> entries;
};

struct ShapeOptions {
  std::vector<Contender> contenders;
  int confirm = 0;                                    ///< of what is automatic so many are measured first
  TuneCache* cache = nullptr;                         ///< of params that were found before
  std::function<std::string(const Plan&)> refuses{};  ///< of what is automatic (TuneOptions)
};

/// Plans, and predicts times where the machine has figures. Safe in several threads at once.
Shape plan_shape(const NamedProblem& named, const Target& target, const ShapeOptions& options);

/// How much of each result is compared with the reference, before its timing and after it.
enum class Checked : std::uint8_t { none, sampled, full };

struct BenchOptions {
  MeasureOptions measure;
  Checked checked = Checked::sampled;
  WorldFlags where;
  Launch launch;
  std::string backend;  ///< as it is called in the rows
  std::uint64_t seed = 0;
};

/// A failure after which the world runs nothing any more.
class BrokenWorld : public Error {
 public:
  using Error::Error;
};

/// Measures all entries of a shape, each in turn with the sequential plan, on matrices that they share;
/// `emit` gets each row as it comes. What fails becomes a row with the reason, and the others go on; where it
/// has broken the world, BrokenWorld is thrown once that row is out. Collective.
void bench_shape(World& world, const Shape& shape, const BenchOptions& options, Progress& progress,
                 const std::function<void(BenchRow)>& emit);

}  // namespace shingle::cli
