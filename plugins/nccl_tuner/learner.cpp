#include "learner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace shingle::nccl_tuner {
namespace {

constexpr std::uint64_t least_ahead = 64, most_ahead = CallHistory::span * 3 / 4;
constexpr int most_refused = 8, most_dropped = 16;
constexpr int resting_iterations = 64;  // iterations between two tries to get the turn

}  // namespace

Learner::Learner(Agreement& agreement, const CallHistory& calls, const Choices& known, const Log& log,
                 Found found, Options options)
    : agreement_(agreement),
      calls_(calls),
      known_(known),
      log_(log),
      found_(std::move(found)),
      options_(std::move(options)),
      turn_(options_.turn) {}

void Learner::on_call(const Call& call, const CostTable& table) {
  if (over_) return;
  if (experiment_) experiment_->see(call, table);
  const Iteration::Event event = iteration_.push(call.signature());
  if (event == Iteration::Event::begins) return on_begin();
  if (event == Iteration::Event::broken) {
    sampler_.restart();
    rhythm_.restart();
    joined_ = false;
    begun_.reset();
    anew_ = true;
    resting_ = 0;
  }
  if (experiment_ && iteration_.period() == 0) retreat();
}

/// Returns to NCCL's choice while nothing can be timed.
void Learner::retreat() {
  if (agreed() && current_ != experiment_->library()) propose(experiment_->library());
}

/// True once the iteration is known to be all of the program's, and not one of several equal sequences.
bool Learner::joined(Sampler::Clock::time_point now) {
  if (joined_) return true;
  // An iteration that was interrupted goes on as before.
  auto sequences = experiment_ ? experiment_->sequences_of(iteration_.calls()) : std::nullopt;
  if (experiment_ && !sequences) retreat();
  if (!sequences) sequences = rhythm_.on_begin(now);
  return joined_ = !over_ && sequences && iteration_.join(*sequences);
}

void Learner::on_begin() {
  const auto now = options_.now();
  if (!joined(now)) return;
  if (resting_ > 0) {
    --resting_;
    return;
  }
  if (!experiment_) return begin();
  if (begun_) {
    const double us = std::chrono::duration<double, std::micro>(now - *begun_).count();
    spent_us_ += us;
    experiment_->pass(us, current_ == experiment_->wanted() && sampler_.settled());
  }
  begun_ = now;
  step(now);
  if (experiment_ && experiment_->rests()) turn_.give_back();
  record();
}

void Learner::step(Sampler::Clock::time_point now) {
  if (std::exchange(anew_, false) && fingerprint(iteration_.calls()) != experiment_->fingerprint())
    dropping_ = true;
  if (!agreed()) return;
  if (dropping_ && current_ == experiment_->library()) {
    end_experiment();
    if (++dropped_ == most_dropped) give_up("the program has no steady iteration");
    return;
  }
  if (const auto& wanted = dropping_ ? experiment_->library() : experiment_->wanted(); wanted != current_)
    return propose(wanted);
  if (experiment_->over()) return conclude();
  if (const auto us = sampler_.on_begin(now); us && !experiment_->tell(*us)) sampler_.lengthen();
}

/// Records kernels while the experiment wants them.
void Learner::record() {
  if (!options_.recorder) return;
  try {
    if (experiment_ && experiment_->records())
      options_.recorder->start();
    else
      options_.recorder->stop();
  } catch (const std::exception& error) {
    log_.warn(fmt::format("{}; computation and communication are not timed apart", error.what()));
    if (experiment_) experiment_->without_recorder();
    options_.recorder.reset();
  }
}

void Learner::begin() {
  auto kinds = kinds_to_tune(iteration_.calls());
  std::erase_if(kinds, [&](CallKind kind) {
    return !known_.at(kind).empty() || std::ranges::find(settled_, kind) != settled_.end();
  });
  Limits left = options_.limits;
  if (left.time_us > 0 && (left.time_us -= spent_us_) <= 0) kinds.clear();
  if (kinds.empty() || !turn_.take()) {
    resting_ = kinds.empty() ? std::numeric_limits<int>::max() : resting_iterations;
    return;
  }
  experiment_.emplace(kinds, iteration_.calls(),
                      ExperimentOptions{.limits = left,
                                        .chunks = options_.chunks,
                                        .recorder = options_.recorder.get(),
                                        .take_turn = [this] { return turn_.take(); }});
  dropping_ = false;
  current_ = experiment_->library();
  sampler_ = {};
  begun_.reset();
  ahead_ = least_ahead;
  log_.inform(fmt::format("tunes {} kinds of calls in iterations of {}", kinds.size(), iteration_.period()));
}

/// Records what the ranks have agreed on. Returns true if no proposal is in flight.
bool Learner::agreed() {
  if (agreement_.is_open()) return false;
  if (proposed_.empty()) return agreement_.free();
  if (agreement_.was_committed()) {
    current_ = proposed_;
    refused_ = 0;
    sampler_.restart();
  } else {
    ahead_ *= 2;
    if (++refused_ == most_refused) give_up("the ranks' hosts are too far apart");
  }
  proposed_.clear();
  return !over_ && agreement_.free();
}

void Learner::propose(const Experiment::Configs& configs) {
  proposed_ = configs;
  // Rounds up to a whole number of iterations, within most_ahead.
  const std::uint64_t period = std::max<std::uint64_t>(iteration_.period(), 1);
  const std::uint64_t iterations = std::max<std::uint64_t>(2, (ahead_ + period - 1) / period);
  agreement_.propose(experiment_->changes(configs), calls_, std::min(iterations * period, most_ahead));
}

void Learner::conclude() {
  for (const CallKind kind : experiment_->kinds()) settled_.push_back(kind);
  const auto learnt = experiment_->learnt();
  const std::string summary = experiment_->summary();
  experiment_.reset();
  turn_.give_back();
  log_.inform(summary);
  found_(learnt, summary);
}

/// Ends the experiment before its end.
void Learner::end_experiment() {
  const auto learnt = experiment_->learnt();
  const std::string summary = experiment_->summary();
  experiment_.reset();
  turn_.give_back();
  if (!learnt.empty()) found_(learnt, summary);
}

void Learner::give_up(const char* why) {
  log_.warn(fmt::format("stops tuning: {}", why));
  finish();
}

void Learner::finish() {
  over_ = true;
  turn_.give_back();
  if (experiment_) end_experiment();
  record();
}

}  // namespace shingle::nccl_tuner
