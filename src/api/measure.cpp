#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "base/statistics.hpp"

namespace shingle {
namespace {

constexpr int least_rounds = 5;
constexpr int most_rounds = 20;

/// A part of a problem's computation: the weight that it uses, and the problem of its sequential plan. The
/// operands have the same sizes.
struct Part {
  Role weight;
  Problem problem;
};

std::vector<Part> parts_of(const Problem& problem) {
  if (problem.traits().backward) return {{Role::b, problem}};
  Problem gemm;
  if (problem.traits().attends) {
    gemm.op = Op::attention_reducescatter;
    gemm.attention = problem.attention;
    gemm.attention.returns_lse = false;
    if (!problem.traits().splits_heads()) {  // a rank has as many heads as all ranks together
      gemm.attention.heads *= problem.world;
      gemm.attention.kv_heads *= problem.world;
    }
  }
  gemm.world = problem.world;
  gemm.m = larger(problem.op == Op::gemm_allgather_gemm ? problem.shard_rows() : problem.m, 1);
  gemm.n = problem.traits().multiplies() ? problem.b_cols() : 1;
  gemm.k = problem.traits().attends ? problem.attended_cols() : problem.k;
  gemm.dtype = problem.dtype;
  gemm.transpose_a = problem.transpose_a;
  gemm.transpose_b = problem.transpose_b;
  std::vector<Part> products{{Role::b, gemm}};
  if (!problem.traits().chains()) return products;
  gemm.m = problem.m;
  gemm.n = problem.n;
  gemm.k = problem.inner;
  products.push_back({Role::down, gemm});
  return products;
}

/// The part of an attention of all tokens that has the queries of one run.
Attend of_queries(Attend step, const GlobalRun& run) {
  step.grid = make_grid(run.rows, step.grid.cols, step.grid.tile_rows, step.grid.tile_cols);
  step.first_token = run.global_row;
  step.q.row += run.global_row;
  step.q.rows = run.rows;
  step.out.slice.row += run.global_row;
  step.out.slice.rows = run.rows;
  step.out.form = placement::Matrix{RowMap::identity(run.rows)};
  return step;
}

/// Steps of the sequential plan that compute, without communication and waits.
Plan computation_alone(const Problem& problem, const Part& part, const Machine& machine) {
  Plan plan = make_plan(part.problem, machine, SequentialParams{}).value();
  if (!problem.traits().attends) return plan;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    RankPlan& rank = plan.ranks[r];
    std::vector<Step> steps;
    for (Step& step : rank.lanes[0].steps) {
      if (std::holds_alternative<AttendBackward>(step))
        steps.push_back(std::move(step));
      else if (const auto* attend = std::get_if<Attend>(&step))
        for (const GlobalRun& run : problem.query_runs(static_cast<int>(r)))
          steps.push_back(of_queries(*attend, run));
      else if (std::holds_alternative<Gemm>(step) && problem.traits().multiplies())
        steps.push_back(std::move(step));
    }
    rank.issue.assign(steps.size(), 0);
    rank.lanes.resize(1);
    rank.lanes[0].steps = std::move(steps);
  }
  plan.counters.clear();
  return plan;
}

/// True if a part of the computation uses the problem's own matrix.
bool shares(const Problem& problem, const Part& part, Role role, int rank) {
  if (part.weight == Role::down && role == Role::a) return false;  // A is the first product's result
  const Role own = role == Role::b ? part.weight : role;
  const std::vector<Role> roles = roles_of(problem);
  return is_input(role) && std::find(roles.begin(), roles.end(), own) != roles.end() &&
         shape_of(problem, own, rank) == shape_of(part.problem, role, rank);
}

}  // namespace

double Measurement::overlap_efficiency() const {
  const double exposed = sequential_us - gemm_us;
  if (gemm_us == 0 || !(exposed > 0.05 * sequential_us)) return std::numeric_limits<double>::quiet_NaN();
  return 1 - (overlapped_us - gemm_us) / exposed;
}

GemmAlone::GemmAlone(World& world, const Inputs& inputs, const Workspace& workspace, double timeout_us) {
  const Problem& problem = inputs.problem();
  for (const Part& part : parts_of(problem)) {
    Operator& op =
        products_.emplace_back(world, computation_alone(problem, part, world.machine()), timeout_us);
    const auto filled = random_inputs(part.problem, 0);
    for (const int rank : world.local_ranks())
      for (const Role role : roles_of(part.problem)) {
        if (shares(problem, part, role, rank)) {
          const Role own = role == Role::b ? part.weight : role;
          op.bind(rank, role, const_cast<void*>(workspace.data(rank, own)));
          continue;
        }
        DeviceBuffer& buffer = scratch_.emplace_back(
            world.allocate(rank, static_cast<std::size_t>(bytes_of(part.problem, role, rank))));
        if (is_input(role)) write_input(world, *filled, rank, role, buffer.data());
        op.bind(rank, role, buffer.data());
      }
  }
}

std::int64_t GemmAlone::bytes(const Problem& problem, int rank) {
  std::int64_t bytes = 0;
  for (const Part& part : parts_of(problem)) {
    const Problem& gemm = part.problem;
    for (const Role role : roles_of(gemm))
      if (!shares(problem, part, role, rank)) bytes += bytes_of(gemm, role, rank);
    if (gemm.traits().backward)  // gathered keys and values, and parts of their gradients
      bytes += (8 * gemm.m + 4 * gemm.world * gemm.shard_rows()) * gemm.kv_cols() *
               static_cast<std::int64_t>(size_bytes(gemm.dtype));
    // Output of attention, and its product.
    else if (gemm.traits().attends)
      bytes += gemm.m * (gemm.k + gemm.n) * static_cast<std::int64_t>(size_bytes(gemm.dtype));
  }
  return bytes;
}

Measurement measure(World& world, std::span<Operator> products, Operator& sequential, Operator& overlapped,
                    const MeasureOptions& options) {
  const auto time = [&](Operator& op) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(options.idle_us));
    return world.all_max({op.run(options.epochs).elapsed_us})[0] / options.epochs;
  };
  const auto time_products = [&] {
    double sum = 0;
    for (Operator& product : products) sum += time(product);
    return sum;
  };
  const bool same = &sequential == &overlapped;
  for (int i = 0; i < options.warmup; ++i) {
    for (Operator& product : products) product.run();
    sequential.run();
    if (!same) overlapped.run();
  }

  std::vector<double> gemm_us, sequential_us, overlapped_us;
  double spent_us = 0;  // the same on every process, so that all run the same number of rounds
  const auto more = [&] {
    const auto rounds = static_cast<int>(gemm_us.size());
    if (options.repeat > 0) return rounds < options.repeat;
    return rounds < least_rounds || (rounds < most_rounds && spent_us < options.budget_us);
  };
  while (more()) {
    gemm_us.push_back(time_products());
    sequential_us.push_back(time(sequential));
    overlapped_us.push_back(same ? sequential_us.back() : time(overlapped));
    spent_us += gemm_us.back() + sequential_us.back() + (same ? 0 : overlapped_us.back());
  }
  Measurement result;
  const Spread overlapped_spread = spread_of(overlapped_us);
  result.gemm_us = spread_of(gemm_us).median;
  result.sequential_us = spread_of(sequential_us).median;
  result.overlapped_us = overlapped_spread.median;
  result.spread = overlapped_spread.relative();
  result.rounds = static_cast<int>(gemm_us.size());
  if (!products.empty()) result.gemm_samples_us = std::move(gemm_us);
  result.sequential_samples_us = std::move(sequential_us);
  result.overlapped_samples_us = std::move(overlapped_us);
  return result;
}

}  // namespace shingle
