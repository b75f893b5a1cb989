#include "call_plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "choose.hpp"
#include "plan/arena_layout.hpp"
#include "shingle/base/error.hpp"

namespace shingle {

Machine with_workers(Machine machine, int workers, std::string_view owner) {
  if (workers < 0 || workers > machine.workers)
    throw InvalidArgument(
        fmt::format("workers = {} is outside [0, {}] of the {}", workers, machine.workers, owner));
  if (workers > 0) machine.workers = workers;
  return machine;
}

/// Mechanism and params of a problem: the same for all m between two powers of two, so that they are searched
/// once.
Params CallPlans::params_for(Declared& op, const Problem& problem) const {
  if (op.options.params) return suited(*op.options.params);
  if (options_.choose) return suited(options_.choose(problem));
  const auto upper = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(problem.m)));
  const auto found = op.chosen.find(upper);
  if (found != op.chosen.end()) return found->second;
  const Problem typical =
      needs_routing(problem) ? problem : with_m(op.largest, std::min(upper, op.largest.m));
  ChooseOptions quick;
  quick.tune.passes = 0;
  quick.tune.refuses = [this](const Plan& plan) { return why_unfit(plan); };
  const Plan plan = op.machine.tiles.empty() ? make_best_plan(typical, op.machine).value()
                                             : choose(typical, op.machine, quick).value().plan;
  return op.chosen.emplace(upper, suited(params_of(plan))).first->second;
}

/// Why a plan cannot serve calls; empty if it can.
std::string CallPlans::why_unfit(const Plan& plan) const {
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      if (lane.submission.prelaunched) return "commands are launched before the call";
  return world_.refuses(plan);
}

Result<Plan> CallPlans::chosen(Declared& op, const Problem& problem) const {
  Result<Plan> plan = make_plan(problem, op.machine, params_for(op, problem));
  if (!plan) return plan;
  if (std::string why = why_unfit(*plan); !why.empty()) return Reason{std::move(why)};
  return plan;
}

Plan CallPlans::sequential(const Declared& op, const Problem& problem) const {
  return make_plan(problem, op.machine, SequentialParams{}).value();
}

std::vector<Plan> CallPlans::typical(Declared& op, const Problem& largest) const {
  std::vector<Plan> plans{sequential(op, largest)};
  const auto add = [&](const Problem& problem) {
    if (Result<Plan> plan = chosen(op, problem)) plans.push_back(std::move(plan).value());
  };
  add(largest);
  for (std::int64_t m = op.options.m_step; !needs_routing(largest) && m < largest.m; m *= 2)
    add(with_m(largest, m));
  return plans;
}

/// Of shards of unequal size, one step less than the maximum, some are copied that equal ones are not.
std::int64_t CallPlans::sequential_bytes(const Declared& op, const Problem& largest) const {
  std::int64_t bytes = 0;
  for (const std::int64_t m : {largest.m, largest.m - op.options.m_step}) {
    if (m < 1 || (m < largest.m && largest.routing)) continue;
    bytes = std::max(bytes, arena_layout(sequential(op, with_m(largest, m))).bytes);
  }
  return bytes;
}

}  // namespace shingle
