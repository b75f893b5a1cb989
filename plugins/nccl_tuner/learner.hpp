// Tunes while the program runs, on the leader of a communicator: it proposes configurations to all ranks, and
// times the program's iterations with them on the host's clock. A plugin sees nothing else, and the iteration
// is what matters to the user; of a program in a steady state the host's iterations take as long as the
// device's.
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
  /// Of an experiment's end.
  using Found = std::function<void(const std::vector<Learnt>&)>;

  using Now = std::function<Sampler::Clock::time_point()>;

  /// Leaves alone the kinds of calls that `known` has choices for. `turn` is the name of the turn that it
  /// waits for.
  Learner(Agreement& agreement, const CallHistory& calls, const Choices& known, const std::string& turn,
          const Log& log, Found found, Now now = &Sampler::Clock::now);

  /// At each call, after what was agreed for it holds, with NCCL's table as it came.
  void on_call(const Call& call, const CostTable& table);
  /// What the experiment under way has found so far counts.
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
  std::vector<CallKind> settled_;  // by experiments that ended
  int dropped_ = 0;                // experiments whose iteration did not go on
  int resting_ = 0;                // iterations in which there is nothing to do
  bool anew_ = false;              // the iteration was broken, and may now be another

  std::optional<Experiment> experiment_;
  bool dropping_ = false;
  Experiment::Configs current_, proposed_;  // what holds; what was proposed: empty, nothing
  std::uint64_t ahead_ = 0;                 // calls from a proposal until it takes effect
  int refused_ = 0;                         // proposals in a row that some rank saw too late
  Sampler sampler_;
};

}  // namespace shingle::nccl_tuner
