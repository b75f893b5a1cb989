// Tunes while the program runs, on the leader of a communicator. It proposes configurations to all ranks and
// times the program's iterations with the host's clock. A plugin can observe nothing else, and the iteration
// time is what the user cares about. In a steady state, host iterations take as long as device iterations.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agreement.hpp"
#include "experiment.hpp"
#include "iteration.hpp"
#include "log.hpp"
#include "sampler.hpp"
#include "turn.hpp"

namespace shingle::nccl_tuner {

class Learner {
 public:
  /// Called at an experiment's end.
  using Found = std::function<void(const std::vector<Learnt>&)>;

  using Now = std::function<Sampler::Clock::time_point()>;

  /// Skips kinds of calls for which `known` has choices. `turn` names the turn to wait for.
  Learner(Agreement& agreement, const CallHistory& calls, const Choices& known, const std::string& turn,
          const Log& log, Found found, Now now = &Sampler::Clock::now);

  /// Called at each call, after agreed choices were applied, with NCCL's unmodified cost table.
  void on_call(const Call& call, const CostTable& table);
  /// Ends tuning. The running experiment's best result so far counts.
  void finish();

 private:
  void on_begin();
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
  const Now now_;
  Iteration iteration_;
  Turn turn_;
  bool over_ = false;
  std::vector<CallKind> settled_;  // from experiments that ended
  int dropped_ = 0;                // experiments whose iteration did not continue
  int resting_ = 0;                // iterations to skip, with nothing to do
  bool anew_ = false;              // the iteration broke and may now be another one

  std::optional<Experiment> experiment_;
  bool dropping_ = false;
  Experiment::Configs current_, proposed_;  // configurations that hold; proposed ones, or empty
  std::uint64_t ahead_ = 0;                 // calls from a proposal until it takes effect
  int refused_ = 0;                         // consecutive proposals that some rank saw too late
  Sampler sampler_;
};

}  // namespace shingle::nccl_tuner
