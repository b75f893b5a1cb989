#include "search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "shingle/base/error.hpp"
#include "strategy.hpp"

namespace shingle::cotune {
namespace {

constexpr std::array<std::string_view, 4> methods{"nccl", "autoccl", "lagom", "exhaustive"};

void validate(int collectives, const Options& options) {
  if (collectives < 1) throw InvalidArgument("there are no collectives to search configurations for");
  if (!(options.least_gain >= 0 && options.least_gain < 1))
    throw InvalidArgument(fmt::format("least_gain = {} is outside [0, 1)", options.least_gain));
  if (options.repeats < 1)
    throw InvalidArgument(fmt::format("repeats = {} must be at least 1", options.repeats));
  if (options.most < 0) throw InvalidArgument(fmt::format("most = {} must be at least 0", options.most));
  if (!(options.trim >= 0 && options.trim < 0.5))
    throw InvalidArgument(fmt::format("trim = {} is outside [0, 0.5)", options.trim));
  if (!(options.reject >= 1))
    throw InvalidArgument(fmt::format("reject = {} must be at least 1", options.reject));
}

std::unique_ptr<Strategy> make(Method method, const Task& task) {
  switch (method) {
    case Method::library:
      return make_library(task);
    case Method::alone:
      return make_alone(task);
    case Method::together:
      return make_together(task);
    case Method::exhaustive:
      break;
  }
  if (task.space.size(task.collectives) > most_exhaustive)
    throw InvalidArgument(fmt::format("{:.0g} configurations of {} collectives are too many to try each",
                                      task.space.size(task.collectives), task.collectives));
  return make_exhaustive(task);
}

/// Mean without the share `trim` of the values at each end.
double trimmed_mean(std::vector<double> values, double trim) {
  std::ranges::sort(values);
  const auto cut = static_cast<std::ptrdiff_t>(trim * static_cast<double>(values.size()));
  const auto first = values.begin() + cut, last = values.end() - cut;
  return std::accumulate(first, last, 0.0) / static_cast<double>(last - first);
}

Measurement mean_of(const std::vector<Measurement>& samples, double trim) {
  const auto mean = [&](auto&& part) {
    std::vector<double> values;
    for (const Measurement& sample : samples) values.push_back(part(sample));
    return trimmed_mean(std::move(values), trim);
  };
  Measurement all{mean([](const Measurement& of) { return of.makespan_us; }),
                  mean([](const Measurement& of) { return of.compute_us; })};
  for (std::size_t i = 0; i < samples.front().communication_us.size(); ++i)
    all.communication_us.push_back(mean([&](const Measurement& of) { return of.communication_us[i]; }));
  return all;
}

}  // namespace

std::string_view name(Method method) {
  return methods[static_cast<std::size_t>(method)];
}

Method parse_method(std::string_view text) {
  const auto found = std::ranges::find(methods, text);
  if (found != methods.end()) return static_cast<Method>(found - methods.begin());
  throw InvalidArgument(fmt::format("unknown method '{}' (one of nccl, autoccl, lagom, exhaustive)", text));
}

/// Measurements so far; a measured configuration is not measured again.
struct Search::Known {
  std::map<std::vector<Config>, Measurement> of;
};

Search::Search(Method method, const Space& space, int collectives, const Options& options, Serves serves)
    : known_(std::make_unique<Known>()),
      options_(options),
      collectives_(collectives),
      needs_communication_(method == Method::alone) {
  validate(collectives, options);
  space.validate();
  if (!serves) serves = [](int, const Config&) { return true; };
  strategy_ = make(method, {space, collectives, options.least_gain, std::move(serves)});
  best_.resize(static_cast<std::size_t>(collectives));
  ask();
}

Search::Search(Search&&) noexcept = default;
Search& Search::operator=(Search&&) noexcept = default;
Search::~Search() = default;

/// Proposes until a configuration is not known yet.
void Search::ask() {
  asked_.reset();
  if (options_.most > 0 && evaluations_ >= options_.most) return;
  while ((asked_ = strategy_->propose())) {
    const auto known = known_->of.find(*asked_);
    if (known == known_->of.end()) return;
    if (!strategy_->judge(known->second)) continue;
    best_ = *asked_;
    best_measured_ = known->second;
  }
}

std::optional<std::vector<Config>> Search::next() const {
  return asked_;
}

/// True if at least two samples are clearly slower than the best; a single one may be noise.
bool Search::rejected() const {
  return least_us_ > 0 && samples_.size() > 1 &&
         std::ranges::all_of(samples_, [&](const Measurement& sample) {
           return sample.makespan_us > options_.reject * least_us_;
         });
}

void Search::tell(const Measurement& measured) {
  if (!asked_) throw InvalidArgument("tell() without an open proposal: call next() first");
  if (!(measured.makespan_us > 0) || !(measured.compute_us >= 0))
    throw InvalidArgument(
        fmt::format("a makespan of {} us must be above 0, and its computation of {} us at least 0",
                    measured.makespan_us, measured.compute_us));
  const std::size_t times = measured.communication_us.size();
  const bool runs = std::isfinite(measured.makespan_us);
  if (times != static_cast<std::size_t>(collectives_) && (times > 0 || (needs_communication_ && runs)))
    throw InvalidArgument(
        fmt::format("the measurement has times of {} collectives; expected {}", times, collectives_));
  if (runs && !samples_.empty() && samples_.front().communication_us.size() != times)
    throw InvalidArgument(
        "measurements of one configuration must all have times of the collectives, or none");
  ++measurements_;
  if (!runs) samples_.clear();
  samples_.push_back(measured);
  if (runs && static_cast<int>(samples_.size()) < options_.repeats && !rejected()) return;

  Measurement mean = mean_of(samples_, options_.trim);
  samples_.clear();
  if (runs) ++evaluations_;
  if (least_us_ == 0 || mean.makespan_us < least_us_) least_us_ = mean.makespan_us;
  if (strategy_->judge(mean)) {
    best_ = *asked_;
    best_measured_ = mean;
  }
  known_->of.emplace(std::move(*asked_), std::move(mean));
  ask();
}

}  // namespace shingle::cotune
