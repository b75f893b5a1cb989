// Searches of a configuration for each of many collectives that run beside computation
// (docs/mechanisms/co-tuning.md).
//
// A search asks and is told: it says what to run next, its owner runs that, measures it however it likes (the
// simulator, a benchmark, a training job's iterations), and tells it. It is deterministic: ranks that tell
// the same figures stay on the same configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "space.hpp"

namespace shingle::cotune {

/// Of one iteration of an overlap, on the slowest rank.
struct Measurement {
  double makespan_us = 0;                  ///< Z; infinite: this configuration does not run
  double compute_us = 0;                   ///< Y: in which the computations are under way; 0: not known
  std::vector<double> communication_us{};  ///< x: of each collective; empty: not known
};

enum class Method : std::uint8_t {
  library,     ///< all left to the library: a single measurement
  alone,       ///< each collective alone, for its own speed, all at once (like AutoCCL); needs
               ///< communication_us
  together,    ///< the makespan of all, with the least resources (Lagom Alg. 1 and 2)
  exhaustive,  ///< every configuration of the space
};
/// "nccl", "autoccl", "lagom", "exhaustive".
std::string_view name(Method method);
/// Throws InvalidArgument.
Method parse_method(std::string_view text);

/// How noise is dealt with.
struct Options {
  double least_gain = 0.002;  ///< relative: a step that gains less is none
  int repeats = 1;            ///< measurements of each configuration, of which …
  double trim = 0.25;         ///< … this part is left out at either end, and the mean taken of the others
  double reject = 1.2;  ///< one that twice takes so many times as long as the best is not measured again
};

/// The most configurations that an exhaustive search goes through.
inline constexpr double most_exhaustive = 5e6;

class Strategy;  // private: how the next configuration is chosen

class Search {
 public:
  /// Of a configuration for each of `collectives` ≥ 1. Throws InvalidArgument: a space or options out of
  /// range, more configurations than an exhaustive search goes through.
  Search(Method method, const Space& space, int collectives, const Options& options = {});
  Search(Search&&) noexcept;
  Search& operator=(Search&&) noexcept;
  ~Search();

  /// What to measure next, one configuration a collective; the same until it has been told. Nothing: the
  /// search is over.
  std::optional<std::vector<Config>> next() const;
  /// The measurement of next(). Throws InvalidArgument where nothing was asked, the makespan is not above
  /// 0, or the collectives' times are not as many as they are, or are missing where the method needs
  /// them.
  void tell(const Measurement& measured);

  /// The configurations that are chosen so far; before any measurement the library's.
  std::vector<Config> best() const { return best_; }
  /// Their measurement; a makespan of 0: none yet.
  Measurement best_measured() const { return best_measured_; }
  /// Configurations that were measured, and measurements of them.
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
  std::vector<Measurement> samples_;  // of what is asked
  double least_us_ = 0;               // of all measured; 0: none
  std::vector<Config> best_;
  Measurement best_measured_;
  int evaluations_ = 0, measurements_ = 0;
};

}  // namespace shingle::cotune
