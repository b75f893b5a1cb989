// The search of configurations for the calls of one iteration of a program.
#pragma once

#include <cstdint>
#include <vector>

#include "call.hpp"
#include "cotune/search.hpp"

namespace shingle::nccl_tuner {

/// Search result for a kind of call.
struct Learnt {
  CallKind kind;
  CollectiveConfig config;
  /// Of the program: with all results applied, and with NCCL's choice
  double iteration_us = 0, default_us = 0;
};

class Experiment {
 public:
  using Configs = std::vector<CollectiveConfig>;  // one per kind of call

  /// Tunes `kinds`, the kinds of calls in an iteration that move many bytes.
  Experiment(const std::vector<CallKind>& kinds, std::uint64_t fingerprint);

  /// Fingerprint of its iteration.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// Takes a call with NCCL's unmodified cost table, which shows how the call can run.
  void see(const Call& call, const CostTable& table);
  /// Configurations to run now; at the end, the result.
  const Configs& wanted() const { return wanted_; }
  bool over() const { return stage_ == Stage::over; }
  /// Takes the time of an iteration with wanted(). Returns false if samples differ too much: they are taken
  /// again, and should cover more iterations.
  bool tell(double iteration_us);
  /// NCCL's choice for all kinds.
  Configs library() const { return Configs(targets_.size()); }
  /// Choices for all ranks.
  std::vector<Change> changes(const Configs& configs) const;
  /// Best result so far for each kind of call. Empty if NCCL's choice was not beaten.
  std::vector<Learnt> learnt() const;
  std::vector<CallKind> kinds() const;
  double default_us() const { return default_us_; }
  double best_us() const { return best_us_; }
  int evaluations() const { return search_.evaluations(); }

 private:
  struct Target {
    CallKind kind;
    std::uint32_t subspaces = 0;  ///< subspaces that it can run in, one bit each
    bool seen = false;
  };
  /// The final stage compares the result with NCCL's choice again, in turns, because clocks drift during the
  /// search.
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

/// Kinds of calls in an iteration that are worth tuning, by bytes moved in descending order.
std::vector<CallKind> kinds_to_tune(const std::vector<std::uint64_t>& signatures);

/// Fingerprint of an iteration, independent of the call that it is taken to begin with.
std::uint64_t fingerprint(const std::vector<std::uint64_t>& signatures);

}  // namespace shingle::nccl_tuner
