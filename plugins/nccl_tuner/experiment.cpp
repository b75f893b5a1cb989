#include "experiment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "abi.hpp"
#include "agreement.hpp"
#include "base/statistics.hpp"
#include "sampler.hpp"

namespace shingle::nccl_tuner {
namespace {

// Smaller calls are bound by latency, for which NCCL's choice is best
constexpr std::uint64_t least_bytes = 32 << 10;
// Disturbances only make a program slower, so the lower quartile of the samples counts.
constexpr std::size_t enough = 5;  // samples of each configuration
constexpr double reject = 1.5;     // two samples above this multiple of the best time reject a configuration
// Relative spread of the first samples, above which they are taken again …
constexpr double most_spread = 0.05;
constexpr int most_begun_anew = 2;      // … with twice the iterations, at most this often
constexpr std::size_t comparisons = 3;  // with NCCL's choice
constexpr double least_gain = 0.01;     // smallest gain that the host's clock can resolve
// A trial begins if it may cost the time of this many iterations. It is abandoned after a third: what the
// ranks have already been told goes on for some iterations.
constexpr double reserve = 24, abandoned = reserve / 3;
constexpr int most_unconfirmed = 8;  // trials in a row, after which something faster is compared

/// Index of a value; 0 if it is not there.
template <class T>
std::int32_t place_of(const std::vector<T>& values, std::int64_t value) {
  const auto found = std::ranges::find(values, value);
  return found == values.end() ? 0 : static_cast<std::int32_t>(found - values.begin());
}

/// Everything that a plugin can set. The first subspace leaves algorithm and protocol to NCCL.
cotune::Space space(bool chunks) {
  constexpr std::int32_t most_channels = 32;  // NCCL's own choice is hardly ever more
  constexpr std::int64_t kib = 1024;
  cotune::Space all = cotune::resource_space(most_channels, 32 * kib);
  all.chunk_bytes = {0};
  if (chunks) all.chunk_bytes = {128 * kib, 256 * kib, 512 * kib, 1024 * kib, 2048 * kib};
  all.subspaces = {{},
                   {Algorithm::ring, Protocol::simple},
                   {Algorithm::ring, Protocol::ll128},
                   {Algorithm::tree, Protocol::simple}};
  // The least resources could make the program several times slower. The search goes down from here too.
  all.start = {place_of(all.channels, 8), place_of(all.chunk_bytes, 512 * kib), 0, 0};
  return all;
}

}  // namespace

Experiment::Experiment(const std::vector<CallKind>& kinds, std::vector<std::uint64_t> iteration,
                       const ExperimentOptions& options)
    : iteration_(std::move(iteration)),
      fingerprint_(nccl_tuner::fingerprint(iteration_)),
      limits_(options.limits),
      recorder_(options.recorder),
      take_turn_(options.take_turn),
      space_(space(options.chunks)),
      search_(cotune::Method::together, space_, static_cast<int>(kinds.size()), {.least_gain = least_gain}),
      account_(options.limits.loss) {
  for (const CallKind kind : kinds) targets_.push_back({kind});
  wanted_ = library();  // a search begins with NCCL's choice
}

std::optional<std::size_t> Experiment::sequences_of(const std::vector<std::uint64_t>& calls) const {
  const std::size_t sequences = iteration_.size() / calls.size();
  if (sequences * nccl_tuner::fingerprint(calls) != fingerprint_) return std::nullopt;
  return sequences;
}

void Experiment::see(const Call& call, const CostTable& table) {
  if (default_us_ > 0) return;  // all kinds of calls have been seen by then
  const auto target = std::ranges::find(targets_, call.kind(), &Target::kind);
  if (target == targets_.end() || target->seen) return;
  target->seen = true;
  for (std::size_t i = 0; i < space_.subspaces.size(); ++i) {
    const auto& subspace = space_.subspaces[i];
    const CollectiveConfig config{
        .channels = 1, .algorithm = subspace.algorithm, .protocol = subspace.protocol};
    if (available(choice_of(config), table)) target->subspaces |= 1u << i;
  }
}

bool Experiment::runs(const Configs& configs) const {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (configs[i] == CollectiveConfig{}) continue;  // NCCL's choice
    const auto subspace = std::ranges::find_if(space_.subspaces, [&](const cotune::Subspace& of) {
      return of.algorithm == configs[i].algorithm && of.protocol == configs[i].protocol;
    });
    const auto bit = static_cast<unsigned>(subspace - space_.subspaces.begin());
    if ((targets_[i].subspaces >> bit & 1) == 0) return false;
  }
  return true;
}

void Experiment::pass(double us, bool settled) {
  passed_us_ += us;
  if (stage_ != Stage::searching && stage_ != Stage::comparing)
    account_.rest(us);
  else
    account_.trial(us, default_us_);
  if (settled) {
    trial_lost_us_ += us - default_us_;
    if (us > reject * default_us_) ++trial_slow_;
  }
  // A single long iteration may be a pause of the program itself.
  if (stage_ == Stage::searching && bounded() && trial_slow_ > 1 &&
      trial_lost_us_ > reserve_us() * abandoned / reserve) {
    proceed(std::max(us, reject * best_measured_.makespan_us));
  } else if (stage_ == Stage::searching && ends()) {
    choose_next();
  } else if (stage_ == Stage::resting && (ends() || account_.left_us() >= reserve_us()) &&
             (!take_turn_ || take_turn_())) {
    choose_next();
  }
}

bool Experiment::tell(double iteration_us) {
  switch (stage_) {
    case Stage::beginning:
      return begin(iteration_us);
    case Stage::searching:
      search(iteration_us);
      break;
    case Stage::resting:
      rest(iteration_us);
      break;
    case Stage::comparing:
      compare(iteration_us);
      break;
    case Stage::over:
      break;
  }
  return true;
}

/// Samples NCCL's choice first, which also shows how steady the program is.
bool Experiment::begin(double iteration_us) {
  samples_.push_back(iteration_us);
  if (samples_.size() < enough) return true;
  const Spread spread = spread_of(std::exchange(samples_, {}));
  if (spread.relative() > most_spread && begun_anew_++ < most_begun_anew) return false;
  default_us_ = spread.p25;
  proceed(default_us_);
  return true;
}

void Experiment::search(double iteration_us) {
  samples_.push_back(iteration_us);
  // A single long sample may be a pause of the program itself.
  const bool hopeless =
      samples_.size() > 1 && std::ranges::min(samples_) > reject * best_measured_.makespan_us;
  if (samples_.size() == enough || hopeless) proceed(spread_of(samples_).p25);
}

void Experiment::proceed(double iteration_us) {
  search_.tell(measured(iteration_us));
  best_measured_ = search_.best_measured();
  choose_next();
}

/// Computation lasts as long as the iteration, without the time in which it waits for collectives alone.
cotune::Measurement Experiment::measured(double iteration_us) const {
  cotune::Measurement all{.makespan_us = iteration_us};
  const auto apart = recorder_ == nullptr ? std::nullopt : timed_apart(recorder_->take(), iteration_);
  if (!apart) return all;
  all.compute_us = iteration_us * (1 - apart->exposed);
  all.communication_us.assign(targets_.size(), 0);
  for (std::size_t i = 0; i < iteration_.size(); ++i) {
    const auto target = std::ranges::find(targets_, Call::of_signature(iteration_[i]).kind(), &Target::kind);
    if (target != targets_.end())
      all.communication_us[static_cast<std::size_t>(target - targets_.begin())] += apart->call_us[i];
  }
  return all;
}

std::optional<Experiment::Configs> Experiment::next_that_runs() {
  while (auto next = search_.next()) {
    if (runs(*next)) return next;
    search_.tell({.makespan_us = std::numeric_limits<double>::infinity()});
  }
  return std::nullopt;
}

double Experiment::reserve_us() const {
  return bounded() ? reserve * std::max(default_us_, Sampler::least_sample_us)
                   : -std::numeric_limits<double>::infinity();
}

/// True if the search has found something that is faster, and was not compared with NCCL's choice.
bool Experiment::has_news() const {
  const double known_us = confirmed_ ? confirmed_->ratio() * default_us_ : default_us_;
  const Configs& best = search_.best();
  return best != library() && best != refuted_ && (!confirmed_ || best != confirmed_->configs) &&
         best_measured_.makespan_us < known_us * (1 - least_gain);
}

/// The next trial if the program can afford it; else compares what is new, or rests.
void Experiment::choose_next() {
  samples_.clear();
  const auto next = ends() ? std::nullopt : next_that_runs();
  const bool affords = next && account_.left_us() >= reserve_us();
  trial_lost_us_ = 0, trial_slow_ = 0;
  if (has_news() && (!affords || unconfirmed_ >= most_unconfirmed)) {
    stage_ = Stage::comparing;
    unconfirmed_ = 0;
    wanted_ = library();
    default_samples_.clear(), best_samples_.clear();
  } else if (affords) {
    stage_ = Stage::searching;
    ++unconfirmed_;
    wanted_ = *next;
  } else {
    stage_ = next ? Stage::resting : Stage::over;
    wanted_ = confirmed_ ? confirmed_->configs : library();
  }
}

/// While the program rests, its pace may change, as with the device's clock.
void Experiment::rest(double iteration_us) {
  samples_.push_back(confirmed_ ? iteration_us / confirmed_->ratio() : iteration_us);
  if (samples_.size() < enough) return;
  default_us_ = spread_of(std::exchange(samples_, {})).p25;
}

/// Alternates between a few samples of one configuration and a few of the other, because clocks drift.
void Experiment::compare(double iteration_us) {
  const bool of_library = wanted_ == library();
  auto& own = of_library ? default_samples_ : best_samples_;
  own.push_back(iteration_us);
  if (own.size() % enough != 0) return;
  wanted_ = of_library ? search_.best() : library();
  if (best_samples_.size() < comparisons * enough) return;
  const Confirmed found{search_.best(), spread_of(best_samples_).p25, spread_of(default_samples_).p25};
  default_us_ = found.default_us;
  if (found.ratio() < (confirmed_ ? confirmed_->ratio() : 1 - least_gain))
    confirmed_ = found;
  else
    refuted_ = found.configs;
  choose_next();
}

std::vector<Change> Experiment::changes(const Configs& configs) const {
  std::vector<Change> all;
  for (std::size_t i = 0; i < targets_.size(); ++i) all.push_back({targets_[i].kind, choice_of(configs[i])});
  return all;
}

std::vector<Learnt> Experiment::learnt() const {
  std::vector<Learnt> all;
  for (std::size_t i = 0; confirmed_ && i < targets_.size(); ++i)
    all.push_back({targets_[i].kind, confirmed_->configs[i], confirmed_->us, confirmed_->default_us});
  return all;
}

std::string Experiment::summary() const {
  const std::string tried =
      fmt::format("{} configurations tried{}", search_.evaluations(), over() && !ends() ? "" : ", not all");
  return confirmed_ ? fmt::format("{:.1f} us an iteration, {:.1f} us with NCCL's choice; {}", confirmed_->us,
                                  confirmed_->default_us, tried)
                    : fmt::format("NCCL's choice holds: none was confirmed to be {:.0f}% faster; {}",
                                  100 * least_gain, tried);
}

std::vector<CallKind> Experiment::kinds() const {
  std::vector<CallKind> all;
  for (const Target& target : targets_) all.push_back(target.kind);
  return all;
}

std::vector<CallKind> kinds_to_tune(const std::vector<std::uint64_t>& signatures) {
  std::vector<std::pair<std::uint64_t, CallKind>> moved;
  for (const std::uint64_t signature : signatures) {
    const Call call = Call::of_signature(signature);
    if (call.bytes < least_bytes || call.collective >= nccl_collectives) continue;
    const auto found = std::ranges::find(moved, call.kind(), &std::pair<std::uint64_t, CallKind>::second);
    if (found == moved.end())
      moved.emplace_back(call.bytes, call.kind());
    else
      found->first += call.bytes;
  }
  std::ranges::stable_sort(moved, std::greater{}, &std::pair<std::uint64_t, CallKind>::first);
  std::vector<CallKind> kinds;
  for (const auto& [bytes, kind] : moved)
    if (kinds.size() < most_changes) kinds.push_back(kind);
  return kinds;
}

std::uint64_t fingerprint(const std::vector<std::uint64_t>& signatures) {
  std::uint64_t sum = signatures.size();
  for (std::uint64_t signature : signatures) {
    signature = (signature ^ signature >> 31) * 0x9e3779b97f4a7c15u;
    sum += signature ^ signature >> 29;
  }
  return sum;
}

}  // namespace shingle::nccl_tuner
