// Searches for a configuration of each of several collectives that run beside computation
// (docs/mechanisms/co-tuning.md).
//
// A search proposes a configuration. Its owner runs and measures it with the simulator, a benchmark or a
// training job's iterations, and tells the search the result. A search is deterministic: ranks that tell the
// same figures get the same configurations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "space.hpp"

namespace shingle::cotune {

/// Figures of one iteration of an overlap, on the slowest rank.
struct Measurement {
  double makespan_us = 0;                  ///< Z; infinite: this configuration does not run
  double compute_us = 0;                   ///< Y: time in which computations run; 0: unknown
  std::vector<double> communication_us{};  ///< x: time of each collective; empty: unknown
};

enum class Method : std::uint8_t {
  library,     ///< NCCL's own choice for all: a single measurement
  alone,       ///< each collective for its own time, all at once (like AutoCCL); needs communication_us
  together,    ///< the makespan of all, with the least resources (Lagom Alg. 1 and 2)
  exhaustive,  ///< every configuration of the space
};
/// "nccl", "autoccl", "lagom", "exhaustive".
std::string_view name(Method method);
/// Throws InvalidArgument.
Method parse_method(std::string_view text);

/// Treatment of noise.
struct Options {
  double least_gain = 0.002;  ///< relative: a smaller gain counts as none
  int repeats = 1;            ///< measurements of each configuration
  int most = 0;               ///< configurations to measure; the search then ends; 0: no limit
  double trim = 0.25;         ///< share of these to leave out at each end; the others are averaged
  double reject =
      1.2;  ///< a configuration that twice takes this multiple of the best time is not measured again
};

/// True if a collective, by its zero-based number, may have a configuration. Others are passed over.
using Serves = std::function<bool(int collective, const Config& config)>;

/// Max number of configurations for an exhaustive search.
inline constexpr double most_exhaustive = 5e6;

class Strategy;  // private: chooses the next configuration

class Search {
 public:
  /// Searches a configuration for each of `collectives` ≥ 1. Throws InvalidArgument if the space or options
  /// are out of range. Also throws if an exhaustive search has too many configurations.
  /// `serves` is empty if every collective may have every configuration.
  Search(Method method, const Space& space, int collectives, const Options& options = {}, Serves serves = {});
  Search(Search&&) noexcept;
  Search& operator=(Search&&) noexcept;
  ~Search();

  /// The configurations to measure next, one for each collective; the same until tell() is called. Nothing:
  /// the search is over.
  std::optional<std::vector<Config>> next() const;
  /// The measurement of next(). Throws InvalidArgument if nothing was asked or the makespan is not above 0.
  /// Also throws if the number of collectives' times is wrong, or they are missing and the method needs them.
  void tell(const Measurement& measured);

  /// The best configurations so far; NCCL's own before any measurement.
  std::vector<Config> best() const { return best_; }
  /// The measurement of best(); a makespan of 0: none yet.
  Measurement best_measured() const { return best_measured_; }
  /// Number of configurations that were measured and run, and number of measurements.
  int evaluations() const { return evaluations_; }
  int measurements() const { return measurements_; }

 private:
  struct Known;
  void ask();
  bool rejected() const;

  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Known> known_;
  Options options_;
  int collectives_ = 0;
  bool needs_communication_ = false;
  std::optional<std::vector<Config>> asked_;
  std::vector<Measurement> samples_;  // of the configurations asked for
  double least_us_ = 0;               // shortest makespan of all measurements; 0: none
  std::vector<Config> best_;
  Measurement best_measured_;
  int evaluations_ = 0, measurements_ = 0;
};

}  // namespace shingle::cotune
