// The search of configurations for the calls of one iteration of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "call.hpp"
#include "cotune/search.hpp"

namespace shingle::nccl_tuner {

/// What a search has found for a kind of call.
struct Learnt {
  CallKind kind;
  CollectiveConfig config;
  double iteration_us = 0, default_us = 0;  ///< of the program: with all that was found, and as NCCL chooses
};

class Experiment {
 public:
  using Configs = std::vector<CollectiveConfig>;  // one a kind of call

  /// Of the kinds of calls in an iteration that move much.
  Experiment(const std::vector<CallKind>& kinds, std::uint64_t fingerprint);

  /// Which iteration it is of.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// A call, with NCCL's table as it came: shows how the call could be carried out.
  void see(const Call& call, const CostTable& table);
  /// What to run now; at the end, what was found.
  const Configs& wanted() const { return wanted_; }
  bool over() const { return stage_ == Stage::over; }
  /// How long an iteration took with what was wanted. False: samples differ too much, and are taken anew;
  /// they should be longer.
  bool tell(double iteration_us);
  /// NCCL's choice for all.
  Configs library() const { return Configs(targets_.size()); }
  /// Choices for all ranks.
  std::vector<Change> changes(const Configs& configs) const;
  /// For each kind of call what was found so far; nothing where NCCL's choice was not beaten.
  std::vector<Learnt> learnt() const;
  std::vector<CallKind> kinds() const;
  double default_us() const { return default_us_; }
  double best_us() const { return best_us_; }
  int evaluations() const { return search_.evaluations(); }

 private:
  struct Target {
    CallKind kind;
    std::uint32_t subspaces = 0;  ///< that it can run in, a bit each
    bool seen = false;
  };
  /// What a search found is compared once more with NCCL's choice, in turns: clocks drift while it searches.
  enum class Stage : std::uint8_t { beginning, searching, comparing, over };
  bool runs(const Configs& configs) const;
  bool begin(double iteration_us);
  void search(double iteration_us);
  void proceed(double iteration_us);
  void compare(double iteration_us);

  std::vector<Target> targets_;
  std::uint64_t fingerprint_;
  cotune::Space space_;
  cotune::Search search_;
  Stage stage_ = Stage::beginning;
  Configs wanted_;
  double default_us_ = 0, best_us_ = 0;
  std::vector<double> samples_, default_samples_, best_samples_;
  int begun_anew_ = 0;
};

/// The kinds of calls in an iteration that are worth tuning, those that move most first.
std::vector<CallKind> kinds_to_tune(const std::vector<std::uint64_t>& signatures);

/// The same for an iteration wherever it is thought to begin.
std::uint64_t fingerprint(const std::vector<std::uint64_t>& signatures);

}  // namespace shingle::nccl_tuner
