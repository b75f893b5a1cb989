// Tunes while the program runs, on the leader of a communicator. It proposes configurations to all ranks and
// times the program's iterations with the host's clock: this time is what the user cares about. In a steady
// state, host iterations take as long as device iterations. A recorder of kernels also tells the times of
// computation and of each collective.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agreement.hpp"
#include "experiment.hpp"
#include "iteration.hpp"
#include "log.hpp"
#include "rhythm.hpp"
#include "sampler.hpp"
#include "turn.hpp"

namespace shingle::nccl_tuner {

class Learner {
 public:
  /// Called at an experiment's end with its result, and a sentence about it.
  using Found = std::function<void(const std::vector<Learnt>&, const std::string& summary)>;

  using Now = std::function<Sampler::Clock::time_point()>;

  struct Options {
    std::string turn;  ///< name of the turn to wait for
    Limits limits{};
    bool chunks = false;                         ///< NCCL asks for chunk sizes
    std::unique_ptr<KernelRecorder> recorder{};  ///< null: nothing times computation and communication apart
    Now now = &Sampler::Clock::now;
  };

  /// Skips kinds of calls for which `known` has choices.
  Learner(Agreement& agreement, const CallHistory& calls, const Choices& known, const Log& log, Found found,
          Options options);

  /// Called at each call, after agreed choices were applied, with NCCL's unmodified cost table.
  void on_call(const Call& call, const CostTable& table);
  /// Ends tuning. What the running experiment has confirmed counts.
  void finish();

 private:
  void on_begin();
  bool joined(Sampler::Clock::time_point now);
  void step(Sampler::Clock::time_point now);
  void record();
  void end_experiment();
  void retreat();
  void begin();
  bool agreed();
  void propose(const Experiment::Configs& configs);
  void conclude();
  void give_up(const char* why);

  Agreement& agreement_;
  const CallHistory& calls_;
  const Choices known_;
  const Log log_;
  const Found found_;
  Options options_;
  Iteration iteration_;
  Rhythm rhythm_;
  bool joined_ = false;  // the iteration is all of the program's
  Turn turn_;
  bool over_ = false;
  std::vector<CallKind> settled_;  // from experiments that ended
  double spent_us_ = 0;            // time of all experiments
  int dropped_ = 0;                // experiments whose iteration did not continue
  int resting_ = 0;                // iterations to skip, with nothing to do
  bool anew_ = false;              // the iteration broke and may now be another one

  std::optional<Experiment> experiment_;
  bool dropping_ = false;
  Experiment::Configs current_, proposed_;  // configurations that hold; proposed ones, or empty
  std::uint64_t ahead_ = 0;                 // calls from a proposal until it takes effect
  int refused_ = 0;                         // consecutive proposals that some rank saw too late
  Sampler sampler_;
  std::optional<Sampler::Clock::time_point> begun_;  // when the last iteration began, if without a pause
};

}  // namespace shingle::nccl_tuner
