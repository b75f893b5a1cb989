#include "params.hpp"

#include <algorithm>
#include <map>

#include "planner/common/param_table.hpp"
#include "planner/common/reach.hpp"
#include "search.hpp"
#include "searched.hpp"

namespace shingle {
namespace {

constexpr double least_gain = 1e-6;  // relative to the time; smaller gains are rounding

/// Groups of waves by Alg. 1: with the workers that it finds, with the workers of `at`, without bounds, and
/// all waves in one group.
Choice groups(const Problem& problem, const Machine& machine, const SignalParams& at,
              const SignalParams& fixed) {
  Choice choice{"groups", {}};
  SignalParams open = at;
  open.group_waves.clear(), open.comm_workers = fixed.comm_workers;
  if (auto found = searched_groups(problem, machine, open)) choice.values.emplace_back(std::move(*found));
  const auto model = wave_model(problem, machine, at);
  if (!model || model->waves() == 0) return choice;
  const auto with = [&](std::vector<std::int64_t> waves) {
    SignalParams params = at;
    params.group_waves = std::move(waves);
    choice.values.emplace_back(std::move(params));
  };
  with(search(*model).group_waves);
  with(search(*model, {0, 0}).group_waves);
  with({model->waves()});
  return choice;
}

/// What the search starts from: the params that the user gave, with a copy engine where messages are not
/// tried.
Params start_of(const Machine& machine, const Params& asked) {
  const auto* ring = std::get_if<RingParams>(&asked);
  if (!ring || !planner::avoids_messages(machine, *ring)) return asked;
  RingParams by_engines = *ring;
  by_engines.engines = 1;
  return by_engines;
}

}  // namespace

std::vector<Choice> choices(const Problem& problem, const Machine& machine, const Params& at,
                            const Params& fixed) {
  std::vector<Choice> found;
  const auto add = [&](Choice choice) {
    std::erase(choice.values, at);
    if (!choice.values.empty()) found.push_back(std::move(choice));
  };
  std::visit(
      [&]<class P>(const P& now) {
        const P& given = std::get<P>(fixed);
        for (const planner::ParamRow<P>& row : P::table()) {
          if (!row.tried || row.text(given)) continue;
          Choice choice{std::string(row.info.name), {}};
          for (P& params : row.tried({problem, machine, now, given}))
            choice.values.emplace_back(std::move(params));
          add(std::move(choice));
        }
        if constexpr (std::is_same_v<P, SignalParams>)
          if (given.group_waves.empty() && !given.equal_groups) add(groups(problem, machine, now, given));
      },
      at);
  return found;
}

Result<Tuned> tune(const Problem& problem, const Machine& machine, Mechanism mechanism,
                   const TuneOptions& options) {
  int tried = 0;
  std::int64_t events = 0;
  std::map<std::string, double> known;  // simulated times by params
  const auto time = [&](const Plan& plan) {
    const auto [at, fresh] = known.try_emplace(describe(plan.params), 0);
    if (fresh) {
      const Simulated simulated = simulate(plan, machine, options.simulate);
      at->second = simulated.makespan_us;
      events += simulated.events;
      ++tried;
      if (options.tried) options.tried(plan, at->second);
    }
    return at->second;
  };
  const auto planned = [&](const Params& params) {
    Result<Plan> plan = plan_with(problem, machine, params);
    if (plan && options.refuses)
      if (std::string reason = options.refuses(*plan); !reason.empty()) plan = Reason{std::move(reason)};
    return plan;
  };
  const Params asked = parse_accepted(mechanism, options.params);
  Params at =
      start_of(machine, asked);  // as requested: the planner's own choices may change with other params
  Result<Plan> first = planned(at);
  if (!first) first = planned(at = asked);
  if (!first) return Reason{first.reason()};
  Tuned best{std::move(first).value(), 0, 0};
  best.us = time(best.plan);
  for (int pass = 0; pass < options.passes; ++pass) {
    const double before = best.us;
    // Each choice builds on the results of the choices before it.
    const std::size_t count = choices(problem, machine, at, asked).size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<Choice> now = choices(problem, machine, at, asked);
      if (i >= now.size()) break;
      for (const Params& params : now[i].values) {
        if (events >= options.most_events) break;
        Result<Plan> plan = planned(params);
        if (!plan) continue;
        const double us = time(*plan);
        if (us >= best.us * (1 - least_gain)) continue;
        best = {std::move(plan).value(), us, 0};
        at = params;
      }
    }
    if (best.us >= before * (1 - least_gain)) break;
  }
  best.tried = tried;
  return best;
}

}  // namespace shingle
