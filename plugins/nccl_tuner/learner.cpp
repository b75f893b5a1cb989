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

Learner::Learner(Agreement& agreement, const CallHistory& calls, const Choices& known,
                 const std::string& turn, const Log& log, Found found, Now now)
    : agreement_(agreement),
      calls_(calls),
      known_(known),
      log_(log),
      found_(std::move(found)),
      now_(std::move(now)),
      turn_(turn) {}

void Learner::on_call(const Call& call, const CostTable& table) {
  if (over_) return;
  if (experiment_) experiment_->see(call, table);
  const Iteration::Event event = iteration_.push(call.signature());
  if (event == Iteration::Event::begins) return on_begin();
  if (event == Iteration::Event::broken) {
    sampler_.restart();
    anew_ = true;
    resting_ = 0;
  }
  if (experiment_ && iteration_.period() == 0) retreat();
}

/// Returns to NCCL's choice while nothing can be timed.
void Learner::retreat() {
  if (agreed() && current_ != experiment_->library()) propose(experiment_->library());
}

void Learner::on_begin() {
  if (resting_ > 0) {
    --resting_;
    return;
  }
  if (!experiment_) return begin();
  if (std::exchange(anew_, false) && fingerprint(iteration_.calls()) != experiment_->fingerprint())
    dropping_ = true;
  if (!agreed()) return;
  if (dropping_ && current_ == experiment_->library()) {
    experiment_.reset();
    turn_.give_back();
    if (++dropped_ == most_dropped) give_up("the program has no steady iteration");
    return;
  }
  if (const auto& wanted = dropping_ ? experiment_->library() : experiment_->wanted(); wanted != current_)
    return propose(wanted);
  if (experiment_->over()) return conclude();
  if (const auto us = sampler_.on_begin(now_()); us && !experiment_->tell(*us)) sampler_.lengthen();
}

void Learner::begin() {
  auto kinds = kinds_to_tune(iteration_.calls());
  std::erase_if(kinds, [&](CallKind kind) {
    return !known_.at(kind).empty() || std::ranges::find(settled_, kind) != settled_.end();
  });
  if (kinds.empty() || !turn_.take()) {
    resting_ = kinds.empty() ? std::numeric_limits<int>::max() : resting_iterations;
    return;
  }
  experiment_.emplace(kinds, fingerprint(iteration_.calls()));
  dropping_ = false;
  current_ = experiment_->library();
  sampler_ = {};
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
  const auto learnt = experiment_->learnt();
  log_.inform(fmt::format("tried {} configurations: {:.1f} us an iteration, {:.1f} us with NCCL's choice",
                          experiment_->evaluations(), experiment_->best_us(), experiment_->default_us()));
  for (const CallKind kind : experiment_->kinds()) settled_.push_back(kind);
  experiment_.reset();
  turn_.give_back();
  found_(learnt);
}

void Learner::give_up(const char* why) {
  log_.warn(fmt::format("stops tuning: {}", why));
  finish();
}

void Learner::finish() {
  over_ = true;
  turn_.give_back();
  if (experiment_ && !dropping_)
    if (const auto learnt = experiment_->learnt(); !learnt.empty()) found_(learnt);
  experiment_.reset();
}

}  // namespace shingle::nccl_tuner
