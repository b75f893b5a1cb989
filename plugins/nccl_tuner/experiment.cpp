#include "experiment.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "abi.hpp"
#include "agreement.hpp"
#include "base/statistics.hpp"

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
constexpr std::size_t comparisons = 3;  // final comparisons with NCCL's choice
constexpr double least_gain = 0.01;     // smallest gain that the host's clock can resolve

/// Everything that a plugin can set. The first subspace leaves algorithm and protocol to NCCL.
cotune::Space space() {
  constexpr std::int32_t most_channels = 32;  // NCCL's own choice is hardly ever more
  cotune::Space all = cotune::resource_space(most_channels, std::int64_t{32} << 10);
  all.chunk_bytes = {0};
  all.subspaces = {{},
                   {Algorithm::ring, Protocol::simple},
                   {Algorithm::ring, Protocol::ll128},
                   {Algorithm::tree, Protocol::simple}};
  return all;
}

}  // namespace

Experiment::Experiment(const std::vector<CallKind>& kinds, std::uint64_t fingerprint)
    : fingerprint_(fingerprint),
      space_(space()),
      search_(cotune::Method::together, space_, static_cast<int>(kinds.size()), {.least_gain = least_gain}) {
  for (const CallKind kind : kinds) targets_.push_back({kind});
  wanted_ = library();  // a search begins with NCCL's choice
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

bool Experiment::tell(double iteration_us) {
  switch (stage_) {
    case Stage::beginning:
      return begin(iteration_us);
    case Stage::searching:
      search(iteration_us);
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
  stage_ = Stage::searching;
  default_us_ = spread.p25;
  proceed(default_us_);
  return true;
}

void Experiment::search(double iteration_us) {
  samples_.push_back(iteration_us);
  // A single long sample may be a pause of the program itself.
  const bool hopeless = samples_.size() > 1 && std::ranges::min(samples_) > reject * best_us_;
  if (samples_.size() == enough || hopeless) proceed(spread_of(std::exchange(samples_, {})).p25);
}

void Experiment::proceed(double iteration_us) {
  search_.tell({.makespan_us = iteration_us});
  best_us_ = search_.best_measured().makespan_us;
  while (const auto next = search_.next()) {
    if (runs(*next)) {
      wanted_ = *next;
      return;
    }
    search_.tell({.makespan_us = std::numeric_limits<double>::infinity()});
  }
  wanted_ = library();
  stage_ = learnt().empty() ? Stage::over : Stage::comparing;
}

/// Alternates between a few samples of one configuration and a few of the other.
void Experiment::compare(double iteration_us) {
  const bool of_library = wanted_ == library();
  auto& own = of_library ? default_samples_ : best_samples_;
  own.push_back(iteration_us);
  if (own.size() % enough != 0) return;
  wanted_ = of_library ? search_.best() : library();
  if (best_samples_.size() < comparisons * enough) return;
  default_us_ = spread_of(default_samples_).p25;
  best_us_ = spread_of(best_samples_).p25;
  stage_ = Stage::over;
  wanted_ = learnt().empty() ? library() : search_.best();
}

std::vector<Change> Experiment::changes(const Configs& configs) const {
  std::vector<Change> all;
  for (std::size_t i = 0; i < targets_.size(); ++i) all.push_back({targets_[i].kind, choice_of(configs[i])});
  return all;
}

std::vector<Learnt> Experiment::learnt() const {
  if (default_us_ == 0 || best_us_ >= default_us_ * (1 - least_gain)) return {};
  std::vector<Learnt> all;
  for (std::size_t i = 0; i < targets_.size(); ++i)
    all.push_back({targets_[i].kind, search_.best()[i], best_us_, default_us_});
  return all;
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
