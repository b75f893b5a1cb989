#include "co_tuning.hpp"

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

/// True if some ranks may stand for all in the simulator.
bool symmetric(const Machine& machine, const SimOptions& options) {
  return options.slowdown.empty() && options.noise == 0 && machine.contention.steals == 0 &&
         machine.contention.wake_us == 0;
}

/// Groups collectives that get the same configuration.
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
      throw InvalidArgument(
          fmt::format("alike has {} numbers for {} collectives; expected one each, in [0, collectives)",
                      number_.size(), collectives));
  }

  int count() const { return count_; }
  /// True if NCCL serves all collectives of a number so.
  bool serves(const Workload& workload, int number, const CollectiveConfig& config) const {
    for (std::size_t i = 0; i < number_.size(); ++i)
      if (number_[i] == number && !nccl_serves(workload.collectives[i].kind, config)) return false;
    return true;
  }
  std::vector<CollectiveConfig> each(const std::vector<CollectiveConfig>& configs) const {
    std::vector<CollectiveConfig> all;
    for (const int number : number_) all.push_back(configs[static_cast<std::size_t>(number)]);
    return all;
  }
  /// Sums the times of collectives with the same configuration.
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

cotune::Space resource_space(const Machine& machine) {
  return cotune::resource_space(std::clamp(machine.workers - 1, 1, most_channels), most_chunk_bytes);
}

cotune::Space config_space(const Machine& machine) {
  cotune::Space space = resource_space(machine);
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::tree})
    for (const Protocol protocol : {Protocol::simple, Protocol::ll128, Protocol::ll})
      space.subspaces.push_back({algorithm, protocol});
  for (const Transport transport : {Transport::p2p, Transport::shm, Transport::net})
    space.subspaces.push_back({{}, {}, transport});
  space.threads = {0, 128, 256, 512};
  return space;
}

ChunkedParams overlap_params(const Machine& machine, std::vector<CollectiveConfig> configs) {
  return {.tile = {machine.tile_rows, machine.tile_cols}, .configs = std::move(configs)};
}

cotune::Measurement measurement_of(const Plan& plan, const std::vector<Span>& spans, double makespan_us) {
  struct Meeting {
    double came = 0, went = 0;
  };
  std::vector<Meeting> meetings(plan.workload()->collectives.size());
  std::vector<double> computing(plan.ranks.size(), 0);
  for (const Span& span : spans) {
    const auto rank = static_cast<std::size_t>(span.rank);
    const Lane& lane = plan.ranks[rank].lanes[static_cast<std::size_t>(span.lane)];
    const auto step = lane.steps.begin() + span.step;
    if (std::holds_alternative<Gemm>(*step) || std::holds_alternative<Elementwise>(*step))
      computing[rank] += span.end_us - span.begin_us;
    if (!std::holds_alternative<Collective>(*step)) continue;
    const auto is_collective = [](const Step& s) { return std::holds_alternative<Collective>(s); };
    Meeting& meeting =
        meetings[static_cast<std::size_t>(std::count_if(lane.steps.begin(), step, is_collective))];
    meeting.came = std::max(meeting.came, span.begin_us);
    meeting.went = std::max(meeting.went, span.end_us);
  }
  cotune::Measurement measured{.makespan_us = makespan_us,
                               .compute_us = *std::ranges::max_element(computing)};
  for (const Meeting& meeting : meetings) measured.communication_us.push_back(meeting.went - meeting.came);
  return measured;
}

cotune::Measurement simulate_overlap(const Workload& workload, const Machine& machine,
                                     const std::vector<CollectiveConfig>& configs, bool beside,
                                     const SimOptions& options) {
  ChunkedParams params = overlap_params(machine, configs);
  params.symmetric = symmetric(machine, options);
  const SequentialParams alone{.tile = params.tile, .configs = params.configs, .symmetric = params.symmetric};
  const Result<Plan> plan =
      beside ? plan_chunked(workload, machine, params) : plan_sequential(workload, machine, alone);
  if (!plan) return {.makespan_us = std::numeric_limits<double>::infinity()};
  const Simulated simulated = simulate(*plan, machine, options);
  return measurement_of(*plan, simulated.spans, simulated.makespan_us);
}

CoTuned co_tune(const Workload& workload, const OverlapMeter& measure, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options, const std::vector<int>& alike) {
  workload.validate();
  const Alike classes(alike, workload.collectives.size());
  cotune::Search search(method, space, classes.count(), options, [&](int number, const CollectiveConfig& at) {
    return classes.serves(workload, number, at);
  });
  while (const auto configs = search.next()) search.tell(classes.together(measure(classes.each(*configs))));
  const std::vector<CollectiveConfig> configs = classes.each(search.best());
  return {configs, measure(configs), search.evaluations()};
}

CoTuned co_tune(const Workload& workload, const Machine& machine, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options, const std::vector<int>& alike) {
  // NCCL's default configuration has a plan unless no configuration has one.
  plan_chunked(workload, machine, {.symmetric = symmetric(machine, {})}).value();
  const auto measure = [&](const std::vector<CollectiveConfig>& configs) {
    return simulate_overlap(workload, machine, configs);
  };
  return co_tune(workload, measure, method, space, options, alike);
}

}  // namespace shingle
