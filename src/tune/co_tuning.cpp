#include "co_tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <variant>

#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle {
namespace {

constexpr std::int32_t most_channels = 64;
constexpr std::int64_t most_chunk_bytes = std::int64_t{4} << 20, most_slice_bytes = std::int64_t{64} << 20;

/// True if some ranks may stand for all in the simulator.
bool symmetric(const Machine& machine, const SimOptions& options,
               const std::vector<CollectiveConfig>& configs = {}) {
  return std::ranges::none_of(configs, &CollectiveConfig::by_engines) && options.slowdown.empty() &&
         options.noise == 0 && machine.contention.steals == 0 && machine.contention.wake_us == 0;
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
  /// True if all collectives of a number may have the settings.
  bool serves(const Workload& workload, int number, const CollectiveConfig& config) const {
    if (!config.by_engines() && config.chunk_bytes > most_chunk_bytes) return false;
    for (std::size_t i = 0; i < number_.size(); ++i)
      if (number_[i] == number && !shingle::serves(workload.collectives[i].kind, config)) return false;
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

/// Which collective of a workload's plan a step belongs to.
class MovedBy {
 public:
  explicit MovedBy(const Plan& plan) : plan_(plan), rows_(rows_of(*plan.workload())) {
    const Params params = params_of(plan);
    std::visit(
        [&](const auto& of) {
          if constexpr (requires { of.configs; })
            for (const CollectiveConfig& config : of.configs) by_engines_.push_back(config.by_engines());
        },
        params);
    by_engines_.resize(rows_.collectives.size(), false);
    for (std::size_t j = 0; j < by_engines_.size(); ++j)
      if (!by_engines_[j]) by_library_.push_back(j);
  }

  /// Of a command of a copy engine, or of the sum of what they moved. The output's rows tell, or the staging
  /// memory.
  std::optional<std::size_t> engines(const Step& step) const {
    const auto* copy = std::get_if<Copy>(&step);
    const auto* pass = std::get_if<Elementwise>(&step);
    if (!copy && !pass) return std::nullopt;
    const Slice& to = copy ? copy->to : pass->to.slice;
    const std::string& buffer = plan_.buffers[static_cast<std::size_t>(to.buffer)].name;
    const bool staged = plan_.buffers[static_cast<std::size_t>(to.buffer)].role == Role::internal;
    for (std::size_t j = 0; j < by_engines_.size(); ++j) {
      const auto& [first, rows] = rows_.collectives[j];
      if (by_engines_[j] &&
          (staged ? buffer == fmt::format("staging {}", j) : to.row >= first && to.row < first + rows))
        return j;
    }
    return std::nullopt;
  }
  /// Of a collective of NCCL.
  std::size_t library(const Lane& lane, std::vector<Step>::const_iterator step) const {
    const auto is_collective = [](const Step& s) { return std::holds_alternative<Collective>(s); };
    return by_library_[static_cast<std::size_t>(std::count_if(lane.steps.begin(), step, is_collective))];
  }

 private:
  const Plan& plan_;
  WorkloadRows rows_;
  std::vector<bool> by_engines_;
  std::vector<std::size_t> by_library_;
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

cotune::Space overlap_space(const Machine& machine) {
  cotune::Space space = config_space(machine);
  if (machine.peer_memory && machine.engine.paced()) {
    space.subspaces.push_back({.transport = Transport::engines});
    while (space.chunk_bytes.back() < most_slice_bytes)
      space.chunk_bytes.push_back(2 * space.chunk_bytes.back());
  }
  for (std::int32_t spared = 4; spared <= std::min(machine.workers / 4, 32); spared *= 2)
    space.spared.push_back(spared);
  space.delay = {0, 1, 2, 3, 4};
  return space;
}

ChunkedParams overlap_params(const Machine& machine, std::vector<CollectiveConfig> configs) {
  TileParams tile{machine.tile_rows, machine.tile_cols};
  if (machine.contention.persistent) tile = {};
  return {.tile = tile, .configs = std::move(configs)};
}

cotune::Measurement measurement_of(const Plan& plan, const std::vector<Span>& spans, double makespan_us) {
  struct Meeting {
    double came = 0, went = 0;
    std::vector<double> begun{};  // by rank, of copy engines
  };
  const MovedBy moved_by(plan);
  std::vector<Meeting> meetings(plan.workload()->collectives.size());
  std::vector<double> computing(plan.ranks.size(), 0);
  for (const Span& span : spans) {
    const auto rank = static_cast<std::size_t>(span.rank);
    const Lane& lane = plan.ranks[rank].lanes[static_cast<std::size_t>(span.lane)];
    const auto step = lane.steps.begin() + span.step;
    if (const auto collective = moved_by.engines(*step)) {
      Meeting& meeting = meetings[*collective];
      meeting.begun.resize(plan.ranks.size(), std::numeric_limits<double>::infinity());
      meeting.begun[rank] = std::min(meeting.begun[rank], span.begin_us);
      meeting.went = std::max(meeting.went, span.end_us);
      continue;
    }
    if (std::holds_alternative<Gemm>(*step) || std::holds_alternative<Elementwise>(*step))
      computing[rank] += span.end_us - span.begin_us;
    if (!std::holds_alternative<Collective>(*step)) continue;
    Meeting& meeting = meetings[moved_by.library(lane, step)];
    meeting.came = std::max(meeting.came, span.begin_us);
    meeting.went = std::max(meeting.went, span.end_us);
  }
  cotune::Measurement measured{.makespan_us = makespan_us,
                               .compute_us = *std::ranges::max_element(computing)};
  for (Meeting& meeting : meetings) {
    std::erase(meeting.begun, std::numeric_limits<double>::infinity());
    if (!meeting.begun.empty()) meeting.came = std::ranges::max(meeting.begun);
    measured.communication_us.push_back(meeting.went - meeting.came);
  }
  return measured;
}

cotune::Measurement simulate_overlap(const Workload& workload, const Machine& machine,
                                     const std::vector<CollectiveConfig>& configs, bool beside,
                                     const SimOptions& options) {
  ChunkedParams params = overlap_params(machine, configs);
  params.symmetric = symmetric(machine, options, configs);
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
