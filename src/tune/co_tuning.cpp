#include "shingle/tune/co_tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle {
namespace {

constexpr std::int32_t most_channels = 64;
constexpr std::int64_t most_chunk_bytes = std::int64_t{4} << 20;

/// The longest that each collective of a plan took on any rank, in the order of the list.
std::vector<double> communication_us(const Plan& plan, const Simulated& simulated) {
  std::vector<double> us(plan.problem.overlap->collectives.size(), 0);
  std::vector<std::vector<std::int32_t>> number(plan.ranks.size());  // [rank][step of the lane]: -1: none
  std::vector<std::int32_t> lane_of(plan.ranks.size(), -1);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (std::size_t l = 0; l < plan.ranks[r].lanes.size(); ++l) {
      const Lane& lane = plan.ranks[r].lanes[l];
      if (lane.kind != LaneKind::communicate) continue;
      lane_of[r] = static_cast<std::int32_t>(l);
      std::int32_t next = 0;
      for (const Step& step : lane.steps)
        number[r].push_back(std::holds_alternative<Collective>(step) ? next++ : -1);
    }
  for (const Span& span : simulated.spans) {
    const auto rank = static_cast<std::size_t>(span.rank);
    if (span.lane != lane_of[rank]) continue;
    const std::int32_t which = number[rank][static_cast<std::size_t>(span.step)];
    if (which < 0) continue;
    double& longest = us[static_cast<std::size_t>(which)];
    longest = std::max(longest, span.end_us - span.begin_us);
  }
  return us;
}

/// Some ranks stand for all where the simulator allows that.
bool symmetric(const Machine& machine, const SimOptions& options) {
  return options.slowdown.empty() && options.noise == 0 && machine.contention.steals == 0 &&
         machine.contention.wake_us == 0;
}

/// Collectives that get the same configuration.
class Alike {
 public:
  Alike(const std::vector<int>& number, std::size_t collectives) : number_(number) {
    if (number_.empty()) {
      number_.resize(collectives);
      std::iota(number_.begin(), number_.end(), 0);
    }
    count_ = *std::ranges::max_element(number_) + 1;
    const bool in_range = *std::ranges::min_element(number_) >= 0 && count_ <= static_cast<int>(collectives);
    if (number_.size() != collectives || !in_range)
      throw InvalidArgument(fmt::format("{} numbers for {} collectives", number_.size(), collectives));
  }

  int count() const { return count_; }
  std::vector<CollectiveConfig> each(const std::vector<CollectiveConfig>& configs) const {
    std::vector<CollectiveConfig> all;
    for (const int number : number_) all.push_back(configs[static_cast<std::size_t>(number)]);
    return all;
  }
  /// Times of those that are alike, together.
  cotune::Measurement together(cotune::Measurement measured) const {
    if (measured.communication_us.empty()) return measured;
    std::vector<double> us(static_cast<std::size_t>(count_), 0);
    for (std::size_t i = 0; i < number_.size(); ++i)
      us[static_cast<std::size_t>(number_[i])] += measured.communication_us[i];
    measured.communication_us = std::move(us);
    return measured;
  }

 private:
  std::vector<int> number_;
  int count_ = 0;
};

}  // namespace

cotune::Space config_space(const Machine& machine) {
  return cotune::resource_space(std::clamp(machine.workers - 1, 1, most_channels), most_chunk_bytes);
}

cotune::Measurement simulate_overlap(const Problem& overlap, const Machine& machine,
                                     const std::vector<CollectiveConfig>& configs, bool beside,
                                     const SimOptions& options) {
  const Params params{.configs = configs, .symmetric = symmetric(machine, options)};
  const Result<Plan> plan =
      beside ? plan_chunked(overlap, machine, params) : plan_sequential(overlap, machine, params);
  if (!plan) return {.makespan_us = std::numeric_limits<double>::infinity()};
  const Simulated simulated = simulate(*plan, machine, options);
  return {.makespan_us = simulated.makespan_us,
          .compute_us = *std::ranges::max_element(simulated.computing_us),
          .communication_us = communication_us(*plan, simulated)};
}

CoTuned co_tune(const Problem& overlap, const Machine& machine, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options, const std::vector<int>& alike) {
  if (!overlap.overlaps()) throw InvalidArgument("co-tuning is for the collectives of an overlap");
  const Alike classes(alike, overlap.overlap->collectives.size());
  // The library's default always has a plan, unless nothing has.
  plan_chunked(overlap, machine, {.symmetric = symmetric(machine, {})}).value();
  cotune::Search search(method, space, classes.count(), options);
  while (const auto configs = search.next())
    search.tell(classes.together(simulate_overlap(overlap, machine, classes.each(*configs))));
  const std::vector<CollectiveConfig> configs = classes.each(search.best());
  return {configs, simulate_overlap(overlap, machine, configs), search.evaluations()};
}

}  // namespace shingle
