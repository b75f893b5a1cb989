#include "params.hpp"

#include <algorithm>
#include <map>

#include "planner/common/param_table.hpp"
#include "search.hpp"
#include "searched.hpp"
#include "shingle/plan/json.hpp"

namespace shingle {
namespace {

constexpr double least_gain = 1e-6;  // relative to the time; smaller gains are rounding

/// Collects the values of one param at a time.
class Choices {
 public:
  Choices(const Params& at, const Params& fixed) : at_(at), fixed_(fixed) {}

  /// Adds a copy of the params for each of `values`, with `field` set to it.
  template <class T>
  void add(const std::string& name, T Params::*field, const std::vector<T>& values) {
    if (!(fixed_.*field == Params{}.*field)) return;
    Choice choice{name, {}};
    for (const T& value : values) {
      Params params = at_;
      params.*field = value;
      choice.values.push_back(std::move(params));
    }
    add(std::move(choice));
  }
  void add(Choice choice) {
    std::erase_if(choice.values, [&](const Params& params) { return params == at_; });
    if (!choice.values.empty()) found_.push_back(std::move(choice));
  }
  std::vector<Choice> go() && { return std::move(found_); }

 private:
  const Params &at_, &fixed_;
  std::vector<Choice> found_;
};

/// Tiles with known times on this machine, for the instrumented GEMM of a mechanism.
Choice tiles(const Problem& problem, const Machine& machine, const Params& at) {
  Choice choice{"tile", {}};
  const auto smaller_serves = [&](const TileRate& tile) {
    return std::ranges::any_of(machine.tiles, [&](const TileRate& other) {
      return other.cols == tile.cols && other.rows < tile.rows && other.rows >= problem.m;
    });
  };
  for (const TileRate& tile : machine.tiles) {
    if (smaller_serves(tile) || tile.cols > 2 * problem.n) continue;
    Params params = at;
    params.tile_rows = tile.rows, params.tile_cols = tile.cols;
    params.group_waves.clear();  // another tile has other waves
    choice.values.push_back(std::move(params));
  }
  return choice;
}

/// Groups of waves by Alg. 1: with the workers that it finds, with the workers of `at`, without bounds, and
/// all waves in one group.
Choice groups(const Problem& problem, const Machine& machine, const Params& at, const Params& fixed) {
  Choice choice{"groups", {}};
  Params open = at;
  open.group_waves.clear(), open.comm_workers = fixed.comm_workers;
  if (auto found = searched_groups(problem, machine, open)) choice.values.push_back(std::move(*found));
  const auto model = wave_model(problem, machine, at);
  if (!model || model->waves() == 0) return choice;
  const auto with = [&](std::vector<std::int64_t> waves) {
    Params params = at;
    params.group_waves = std::move(waves);
    choice.values.push_back(std::move(params));
  };
  with(search(*model).group_waves);
  with(search(*model, {0, 0}).group_waves);
  with({model->waves()});
  return choice;
}

/// Messages, or engines, which take no workers. The choice changes the best workers and slices too.
Choice ring_engines(const Params& at, const Params& fixed) {
  Params other = at;
  other.engines = at.engines == 0 ? 1 : 0;
  other.comm_workers = fixed.comm_workers, other.slices = fixed.slices;
  return {"engines", {other}};
}

/// Whether a ring is tried with copy engines only. Messages take workers from the GEMMs. On H200 a ring by
/// messages was slower than `sequential` where the simulator predicted a gain. Engines take no workers.
bool goes_by_engines(const Machine& machine, const Params& fixed) {
  return machine.collective_workers > 0 && machine.peer_memory && fixed.engines == 0 &&
         fixed.comm_workers == 0;
}

}  // namespace

std::vector<std::int32_t> known_comm_workers(const Machine& machine) {
  std::vector<std::int32_t> workers;
  for (const Curve& curve : machine.curves)
    if (curve.workers > 0 && curve.workers < machine.workers) workers.push_back(curve.workers);
  std::ranges::sort(workers);
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  return workers;
}

std::vector<Choice> choices(const Problem& p, const Machine& machine, Mechanism mechanism, const Params& at,
                            const Params& fixed) {
  Choices found(at, fixed);
  const bool tiled = mechanism == Mechanism::signal || mechanism == Mechanism::fused;
  if (tiled && fixed.tile_rows == 0) found.add(tiles(p, machine, at));
  if (mechanism == Mechanism::ring && machine.peer_memory && fixed.engines == 0)
    found.add(ring_engines(at, fixed));
  if (machine.collective_workers > 0 && mechanism != Mechanism::fused && mechanism != Mechanism::copy_engine)
    found.add("comm_workers", &Params::comm_workers, known_comm_workers(machine));
  switch (mechanism) {
    case Mechanism::sequential:
      break;
    case Mechanism::chunked:
      found.add("chunks", &Params::chunks, {2, 3, 4, 6, 8, 12, 16});
      break;
    case Mechanism::ring:
      found.add("slices", &Params::slices, {1, 2, 3, 4, 6, 8});
      if (p.op == Op::attention_reducescatter)
        found.add("row_parallel", &Params::row_parallel, {false, true});
      break;
    case Mechanism::signal:
      if (fixed.group_waves.empty() && !fixed.equal_groups) found.add(groups(p, machine, at, fixed));
      break;
    case Mechanism::fused: {
      const std::int32_t few = std::max(machine.workers / 32, 1);
      if (machine.workers > 1)
        found.add("helpers", &Params::helpers, {Params::no_helpers, few, 2 * few, 4 * few});
      if (p.op == Op::gemm_allreduce) found.add("one_shot", &Params::one_shot, {false, true});
      if (!p.traits().shards_a()) {  // an order is one of two hops; `automatic` may choose one shot
        if (p.traits().reduces())
          found.add("comm_order", &Params::comm_order,
                    {CommOrder::automatic, CommOrder::ring, CommOrder::interleaved});
        break;
      }
      const std::int64_t shard = p.shard_rows();
      found.add("comm_rows", &Params::comm_rows,
                {shard, ceil_div(shard, 2), ceil_div(shard, 4), ceil_div(shard, 8)});
      if (!fixed.unregistered) found.add("pull", &Params::pull, {false, true});
      found.add("mover", &Params::mover, {Mover::copy_engine, Mover::store});
      found.add("comm_order", &Params::comm_order,
                {CommOrder::ring, CommOrder::reverse, CommOrder::interleaved});
      break;
    }
    case Mechanism::copy_engine:
      found.add("variant", &Params::variant,
                {Variant::pcpy, Variant::bcst, Variant::swap, Variant::b2b, Variant::ring});
      found.add("prelaunch", &Params::prelaunch, {false, true});
      found.add("trigger", &Params::trigger, {Trigger::host, Trigger::direct});
      break;
  }
  return std::move(found).go();
}

Result<Tuned> tune(const Problem& problem, const Machine& machine, Mechanism mechanism, Planner planner,
                   const TuneOptions& options) {
  int tried = 0;
  std::map<std::string, double> known;  // simulated times by params
  const auto time = [&](const Plan& plan) {
    const auto [at, fresh] = known.try_emplace(to_json(plan.params), 0);
    if (fresh) {
      at->second = simulate(plan, machine, options.simulate).makespan_us;
      ++tried;
      if (options.tried) options.tried(plan, at->second);
    }
    return at->second;
  };
  const auto planned = [&](const Params& params) {
    Result<Plan> plan = planner(problem, machine, params);
    if (plan && options.refuses)
      if (std::string reason = options.refuses(*plan); !reason.empty()) plan = Reason{std::move(reason)};
    return plan;
  };
  const Params asked = taken(mechanism, problem.op, options.params);
  Params fixed = asked;
  if (mechanism == Mechanism::ring && goes_by_engines(machine, fixed)) fixed.engines = 1;
  Result<Plan> first = planned(fixed);
  if (!first) first = planned(fixed = asked);
  if (!first) return Reason{first.reason()};
  Params at = fixed;  // as requested: the planner's own choices may change with other params
  Tuned best{std::move(first).value(), 0, 0};
  best.us = time(best.plan);
  for (int pass = 0; pass < options.passes; ++pass) {
    const double before = best.us;
    // Each choice builds on the results of the choices before it.
    const std::size_t count = choices(problem, machine, mechanism, at, fixed).size();
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<Choice> now = choices(problem, machine, mechanism, at, fixed);
      if (i >= now.size()) break;
      for (const Params& params : now[i].values) {
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
