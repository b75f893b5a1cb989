#include "shingle/sim/metrics.hpp"

#include <algorithm>

#include "costs.hpp"
#include "demand.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle {
namespace {

double product(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

/// A library's product of the same rows: one tile. Mechanisms cut the rows of a weight in ways of their own,
/// by source or by chunk, so no mechanism's tiles are a lower bound.
Gemm by_library(Gemm gemm) {
  const TileGrid& grid = gemm.grid;
  gemm.grid = make_grid(grid.rows, grid.cols, static_cast<std::int32_t>(larger(grid.rows, std::int64_t{1})),
                        static_cast<std::int32_t>(grid.cols));
  return gemm;
}

/// Reduces each rank to one lane with its Gemm, Attend and AttendBackward steps, in a workload also its
/// passes, and nothing to wait for. Grouped products are those of a library.
Plan computation_of(Plan plan) {
  for (RankPlan& rank : plan.ranks) {
    std::vector<Step> steps;
    for (Lane& lane : rank.lanes)
      for (Step& step : lane.steps)
        if (std::holds_alternative<Gemm>(step) || std::holds_alternative<Attend>(step) ||
            std::holds_alternative<AttendBackward>(step) ||
            (plan.workload() && std::holds_alternative<Elementwise>(step))) {
          if (auto* gemm = std::get_if<Gemm>(&step); gemm && !gemm->groups.empty()) step = by_library(*gemm);
          steps.push_back(std::move(step));
        }
    rank.issue.assign(steps.size(), 0);
    rank.lanes.assign(1, {LaneKind::compute, "compute", std::move(steps)});
  }
  plan.counters.clear();
  return plan;
}

/// Max. rate of a rank among `world` ranks: of its links to them, or of a collective between as many. Without
/// a curve of as many, any curve counts.
double best_gbps(const Machine& machine, int world) {
  const Topology& topology = machine.topology;
  const bool paired = topology.pair.gbps > 0 && world <= topology.pair_ranks;
  double best = paired ? topology.pair.gbps * (world - 1) : machine.link.gbps;
  const bool known =
      std::ranges::any_of(machine.curves, [&](const Curve& curve) { return curve.ranks == world; });
  for (const Curve& curve : machine.curves)
    for (const Sample& sample : curve.samples)
      if (!known || curve.ranks == world)
        best = std::max(best, wire_factor(curve.traffic, curve.ranks) * sample.bytes / (sample.us * 1e3));
  return best;
}

/// Bytes that the busiest rank's link carries in one direction in the collectives of a sequential plan.
double wire_bytes(const Plan& plan) {
  double most = 0;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    double bytes = 0;
    for (const Lane& lane : plan.ranks[r].lanes)
      for (const Step& step : lane.steps) {
        const auto* call = std::get_if<Collective>(&step);
        if (!call) continue;
        const auto size = [&](const Slice& slice, std::int64_t rows) {
          return static_cast<double>(rows) * static_cast<double>(slice.cols) *
                 sim::element_bytes(plan, slice);
        };
        const auto ranks = static_cast<double>(plan.world());
        const double others = (ranks - 1) / ranks;
        switch (call->kind) {
          case CollectiveKind::allreduce:
            bytes += 2 * others * size(call->send, call->send.rows);
            break;
          case CollectiveKind::reducescatter:
            bytes += others * size(call->send, call->send.rows);
            break;
          case CollectiveKind::allgather:
            bytes += others * size(call->recv, call->recv.rows);
            break;
          case CollectiveKind::alltoall:
            bytes += std::max(size(call->send, call->send.rows - call->send_rows[r]),
                              size(call->recv, call->recv.rows - call->recv_rows[r]));
            break;
        }
      }
    most = std::max(most, bytes);
  }
  return most;
}

double peak_tflops(const Machine& machine) {
  double best = 0;
  for (const TileRate& tile : machine.tiles)
    best = std::max(best, 2 * product(tile.rows, tile.cols, machine.workers) / tile.us_per_k * 1e-6);
  return best * std::max(machine.library_rate, 1.0);
}

}  // namespace

double flops_of(const Workload& workload) {
  double flops = 0;
  for (const Workload::Computation& item : workload.computations)
    if (item.kind != ComputationKind::pass) flops += 2 * product(item.m, item.n, item.k);
  return flops;
}

double flops_of(const Problem& p) {
  double most = 0;
  for (int rank = 0; rank < p.world; ++rank) {
    const std::int64_t rows = p.traits().grouped                ? p.expected_received(rank)
                              : p.op == Op::alltoall_gemm       ? p.out_rows(rank)
                              : p.op == Op::gemm_alltoall       ? p.a_rows(rank)
                              : p.op == Op::gemm_allgather_gemm ? p.a_rows(rank)
                                                                : p.m;
    double flops = p.traits().multiplies() ? 2 * product(rows, p.b_cols(), p.k) : 0;
    if (p.traits().chains()) flops += 2 * product(p.traits().grouped ? rows : p.m, p.n, p.inner);
    if (p.traits().attends) {
      constexpr std::int64_t block = 64;
      for (const GlobalRun& run : p.query_runs(rank))
        for (std::int64_t row = 0; row < run.rows; row += block) {
          const std::int64_t queries = smaller(block, run.rows - row);
          flops += (p.traits().backward ? 10 : 4) *
                   product(queries, p.seen_by(run.global_row + row, queries).count(), p.attended_cols());
        }
    }
    most = std::max(most, flops);
  }
  return most;
}

Result<Metrics> measure(const Plan& plan, const Machine& machine, const SimOptions& options) {
  const Result<Plan> sequential = std::visit(
      [&](const auto& work) { return plan_sequential(work, machine, {.symmetric = is_symmetric(plan)}); },
      plan.work);
  if (!sequential) return Reason{sequential.reason()};
  Metrics metrics;
  const Simulated simulated = simulate(plan, machine, options);
  metrics.us = simulated.makespan_us / options.epochs;
  metrics.exposed_us = simulated.exposed_us() / options.epochs;
  metrics.sequential_us = simulate(*sequential, machine, options).makespan_us / options.epochs;
  if (plan.workload() || !plan.problem().traits().is_collective())
    metrics.compute_us = simulate(computation_of(*sequential), machine, options).makespan_us / options.epochs;
  const double gbps = best_gbps(machine, plan.world());
  metrics.wire_us = gbps > 0 ? wire_bytes(*sequential) / (gbps * 1e3) : 0;
  metrics.flops = std::visit([](const auto& work) { return flops_of(work); }, plan.work);
  metrics.peak_tflops = peak_tflops(machine);
  return metrics;
}

}  // namespace shingle
