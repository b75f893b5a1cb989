// The search of configurations for the calls of one iteration of a program.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "call.hpp"
#include "cotune/search.hpp"
#include "kernels.hpp"
#include "loss_account.hpp"

namespace shingle::nccl_tuner {

/// Search result for a kind of call.
struct Learnt {
  CallKind kind;
  CollectiveConfig config;
  /// Of the program: with all results applied, and with NCCL's choice
  double iteration_us = 0, default_us = 0;
};

/// How an experiment is run.
struct ExperimentOptions {
  Limits limits{};
  bool chunks = false;                 ///< NCCL asks for chunk sizes
  KernelRecorder* recorder = nullptr;  ///< times computation and communication apart; null: unknown
  /// Asked before the experiment goes on after a rest; false: others try meanwhile. Empty: it goes on.
  std::function<bool()> take_turn{};
};

/// Tries configurations, and compares what is faster with NCCL's choice again, in turns. Only what that
/// confirms counts as a result. Trials cost a bounded share of the program's time: between them the program
/// rests with what was confirmed.
class Experiment {
 public:
  using Configs = std::vector<CollectiveConfig>;  // one per kind of call

  /// Tunes `kinds`, the kinds of calls in an iteration that move many bytes. `iteration`: signatures of its
  /// calls.
  Experiment(const std::vector<CallKind>& kinds, std::vector<std::uint64_t> iteration,
             const ExperimentOptions& options = {});

  std::uint64_t fingerprint() const { return fingerprint_; }
  /// How many of these sequences of calls make its iteration; nothing if it does not consist of them.
  std::optional<std::size_t> sequences_of(const std::vector<std::uint64_t>& calls) const;

  /// Takes a call with NCCL's unmodified cost table, which shows how the call can run.
  void see(const Call& call, const CostTable& table);
  /// Configurations to run now; at the end, the result.
  const Configs& wanted() const { return wanted_; }
  bool over() const { return stage_ == Stage::over; }
  /// True while the program rests: others may try meanwhile.
  bool rests() const { return stage_ == Stage::resting; }
  /// True while kernels are to be recorded.
  bool records() const { return stage_ == Stage::beginning || stage_ == Stage::searching; }
  /// Nothing records kernels any more.
  void without_recorder() { recorder_ = nullptr; }
  /// An iteration has passed in this time. `settled`: wanted() was in effect on the device. May change
  /// wanted().
  void pass(double us, bool settled);
  /// Takes the time of an iteration with wanted(). Returns false if samples differ too much: they are taken
  /// again, and should cover more iterations.
  bool tell(double iteration_us);
  /// NCCL's choice for all kinds.
  Configs library() const { return Configs(targets_.size()); }
  /// Choices for all ranks.
  std::vector<Change> changes(const Configs& configs) const;
  /// The best confirmed result for each kind of call. Empty if none was confirmed.
  std::vector<Learnt> learnt() const;
  std::vector<CallKind> kinds() const;
  /// One sentence about the result so far.
  std::string summary() const;
  /// The search's figures of its best configurations.
  const cotune::Measurement& best_measured() const { return best_measured_; }

 private:
  struct Target {
    CallKind kind;
    std::uint32_t subspaces = 0;  ///< subspaces that it can run in, one bit each
    bool seen = false;
  };
  struct Confirmed {
    Configs configs;
    double us = 0, default_us = 0;  ///< in the same comparison
    double ratio() const { return us / default_us; }
  };
  enum class Stage : std::uint8_t { beginning, searching, resting, comparing, over };

  bool runs(const Configs& configs) const;
  bool begin(double iteration_us);
  void search(double iteration_us);
  void proceed(double iteration_us);
  void compare(double iteration_us);
  void rest(double iteration_us);
  void choose_next();
  std::optional<Configs> next_that_runs();
  cotune::Measurement measured(double iteration_us) const;
  bool has_news() const;
  bool ends() const { return limits_.time_us > 0 && passed_us_ >= limits_.time_us; }
  bool bounded() const { return limits_.loss < 1; }
  double reserve_us() const;

  std::vector<Target> targets_;
  const std::vector<std::uint64_t> iteration_;
  const std::uint64_t fingerprint_;
  const Limits limits_;
  KernelRecorder* recorder_;
  const std::function<bool()> take_turn_;
  cotune::Space space_;
  cotune::Search search_;
  cotune::Measurement best_measured_;
  Stage stage_ = Stage::beginning;
  Configs wanted_;
  double default_us_ = 0;  // with NCCL's choice, as last measured
  std::optional<Confirmed> confirmed_;
  Configs refuted_;  // the last that were not confirmed
  LossAccount account_;
  double trial_lost_us_ = 0;  // by the running trial
  int trial_slow_ = 0;        // its iterations that were clearly slower than with NCCL's choice
  double passed_us_ = 0;      // of all iterations
  int unconfirmed_ = 0;       // trials since the last comparison
  std::vector<double> samples_, default_samples_, best_samples_;
  int begun_anew_ = 0;
};

/// Kinds of calls in an iteration that are worth tuning, by bytes moved in descending order.
std::vector<CallKind> kinds_to_tune(const std::vector<std::uint64_t>& signatures);

/// Fingerprint of an iteration, independent of the call that it is taken to begin with. That of n equal
/// sequences is n times that of one.
std::uint64_t fingerprint(const std::vector<std::uint64_t>& signatures);

}  // namespace shingle::nccl_tuner
