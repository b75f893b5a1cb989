// ring: Flash-Overlap (docs/mechanisms/ring.md). It uses messages to the next rank, or copies, and no
// collective. Each moves one slice of one shard while the next slice is computed.
//
// The order of the shards leaves no message exposed at one end. A reduce-scatter ends with the rank's own
// shard; an all-gather begins with it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "direct_copies.hpp"
#include "planner/common/reach.hpp"
#include "planner/common/symmetry.hpp"
#include "planner/common/ulysses.hpp"
#include "ring.hpp"

namespace shingle {
namespace {

using planner::Builder;
using planner::compute_lane;
using planner::OutputGather;
using planner::Reducer;
using planner::RingBuilder;
using planner::RingGather;
using planner::Run;
using planner::Shards;
using planner::Sums;

/// Default number of slices of a shard.
///
/// There are eight slices in total: if messages take longer than computation, the message of one slice is
/// exposed. Each rank has at least two, so that a late message delays no rank. An allreduce has eight slices
/// in each shard, because the all-gather of one slice of every rank is exposed.
///
/// If many workers share a product, a slice should have at least one wave of tiles: less takes as long as a
/// whole wave.
std::int32_t default_slices(const Problem& problem, const Machine& machine) {
  if (problem.op == Op::ulysses_attention) return planner::default_ulysses_slices(problem);
  if (problem.op == Op::allgather_attention || problem.op == Op::attention_backward)
    return 1;  // own keys hide the first message
  const std::int32_t wanted = problem.op == Op::gemm_allreduce ? 8 : std::max(8 / problem.world, 2);
  if (machine.workers == 1) return wanted;
  const double wave = static_cast<double>(machine.workers) * machine.tile_rows * machine.tile_cols;
  const double waves = static_cast<double>(problem.shard_rows()) * static_cast<double>(problem.n) / wave;
  return static_cast<std::int32_t>(std::clamp(std::round(waves), 1.0, static_cast<double>(wanted)));
}

/// All slices of a shard, then the next shard: a message can take as long as all slices of a shard.
void plan_reducescatter(RingBuilder& build, const Shards& shards) {
  const Sums sums = make_sums(build, shards, build.problem().shard_rows());
  std::vector<std::int64_t> rows;
  for (std::int64_t s = 0; s < shards.slices(); ++s) rows.push_back(shards.begin(s));
  for (int r = 0; r < build.ranks(); ++r) {
    Reducer reducer(build, shards, sums, r, rows);
    if (build.params().row_parallel) reducer.attend_all();
    for (std::int64_t i = 0; i < build.world(); ++i)
      for (std::int64_t s = 0; s < shards.slices(); ++s) reducer.step(i, s);
  }
}

/// Slice by slice, so that the all-gather of a slice runs beside the reduce-scatter of the next one.
void plan_allreduce(RingBuilder& build, const Shards& shards) {
  Sums sums = make_sums(build, shards, shards.longest());
  const std::int64_t steps = build.world() - 1;
  if (steps > 0) sums.finished = build.counter("finished", shards.slices());
  const OutputGather gather(build, shards, sums.finished);
  for (int r = 0; r < build.ranks(); ++r) {
    Reducer reducer(build, shards, sums, r, {0});
    for (std::int64_t s = 0; s <= shards.slices(); ++s)
      for (std::int64_t i = 0; i <= steps; ++i) {
        if (s > 0 && i < steps) gather.step(r, i, s - 1);
        if (s < shards.slices()) reducer.step(i, s);
      }
    gather.await_last(r);
  }
}

void plan_allgather(RingBuilder& build, const Shards& shards) {
  const Problem& p = build.problem();
  const std::int32_t product =
      p.norm.enabled ? build.buffer("product", p.m, build.product_cols()) : build.out;
  const RingGather gather(build, shards);
  for (int r = 0; r < build.ranks(); ++r) {
    for (std::int64_t i = 0; i < p.world; ++i)
      for (std::int64_t s = 0; s < shards.slices(); ++s) {
        gather.pass_on(r, i, s);
        const Slice slice = gather.held(r, i, s);
        if (slice.rows == 0) continue;
        gather.await(r, i, s);
        for (const Run& run : shards.runs(shards.behind(r, i), s)) {
          Placement store{build.all(product, r), placement::Matrix{run.rows}};
          Gemm gemm = build.gemm(r, build.one_tile(run.count), RowMap::identity(run.count, run.first),
                                 std::move(store));
          gemm.a = slice;
          build.step(r, compute_lane, std::move(gemm));
        }
      }
    planner::finish_rows(build, r, product, p.m);
  }
}

Rounding ring_rounding(const Problem& problem) {
  if (!problem.traits().reduces() || problem.world == 1) return planner::rounding(problem);
  return {Summing::ring, problem.dtype};
}

/// Engines use no workers. On GPUs, the waits and notifies between engines and GEMMs use one. Stores need few
/// workers: attention takes longer than what it exchanges.
Machine with_movers(Machine machine, const RingParams& params) {
  std::int32_t most = machine.collective_workers;
  if (params.engines > 0) most = 1;
  if (params.mover == Mover::store) most = std::max(machine.workers / 32, 1);
  machine.collective_workers = std::min(machine.collective_workers, most);
  return planner::with_comm_workers(std::move(machine), params.comm_workers);
}

/// Reason why nothing can copy slices to other ranks, or nullopt if it can or is not requested.
std::optional<Reason> no_copies(const Problem& problem, const Machine& machine, const RingParams& params) {
  const bool stores = params.mover == Mover::store;
  if (params.engines < 0) return Reason{fmt::format("engines = {} must not be negative", params.engines)};
  if (stores && params.engines > 0)
    return Reason{
        fmt::format("engines = {} and mover = store exclude each other: leave one out", params.engines)};
  if (stores && !problem.traits().shards_tokens())
    return Reason{fmt::format(
        "ring has stores for attention's exchanges only, not for {}: leave mover = store out, or use fused",
        name(problem.op))};
  if ((params.engines == 0 && !stores) || problem.world == 1) return std::nullopt;
  if (auto reason = planner::out_of_reach(
          problem.world, machine, stores ? "workers store to" : "engines copy into",
          stores ? "without --mover ranks send messages" : "without --engines ranks send messages"))
    return *reason;
  return planner::needs_all_ranks(problem, params.symmetric, stores ? "a store" : "an engine");
}

}  // namespace

Result<Plan> plan_ring(const Problem& problem, const Machine& host, const RingParams& asked) {
  problem.validate();
  RingParams params = asked;
  if (params.mover == Mover::copy_engine && params.engines == 0) params.engines = 1;
  // Engines gather sums in the next rank's output, which peers cannot access here. Messages work with any
  // memory.
  if (params.unregistered && problem.op == Op::gemm_allreduce) params.engines = 0;
  const Machine machine = with_movers(host, params);
  if (auto reason = planner::infeasible(problem, machine, params)) return *reason;
  if (auto reason = planner::nothing_to_overlap(problem)) return *reason;
  if (problem.traits().routes())
    return Reason{fmt::format(
        "ring passes shards to the next rank, but {} sends rows to all ranks: use fused", name(problem.op))};
  if (problem.op == Op::gemm_allgather_gemm)
    return Reason{
        "ring gathers inputs only, but this operator gathers a product: use chunked or copy-engine"};
  if (auto reason = no_copies(problem, machine, params)) return *reason;
  const auto most = static_cast<std::int32_t>(planner::max_slices) / problem.world;
  if (params.slices < 0 || params.slices > most)
    return Reason{fmt::format("slices = {} must be at least 1 and at most {} for {} ranks", params.slices,
                              most, problem.world)};
  RingParams chosen;
  chosen.comm_workers = params.comm_workers;
  chosen.symmetric = params.symmetric;
  chosen.unregistered = params.unregistered;
  chosen.slices = params.slices > 0 ? params.slices : std::min(default_slices(problem, machine), most);
  chosen.engines = std::min(params.engines, chosen.slices);
  if (params.mover == Mover::store && problem.world > 1) chosen.mover = Mover::store;
  chosen.row_parallel = params.row_parallel && problem.op == Op::attention_reducescatter;
  RingBuilder build(problem, machine, chosen);
  if (problem.op == Op::allgather_attention) {
    planner::attention_in_turns(build);
    return std::move(build).finish({problem.world > 1 ? Summing::parts : Summing::none, problem.dtype});
  }
  if (problem.op == Op::attention_backward) {
    planner::attention_backward_in_turns(build);
    return std::move(build).finish({problem.world > 1 ? Summing::parts : Summing::none, problem.dtype});
  }
  if (problem.op == Op::ulysses_attention) {
    planner::by_copies(build) ? planner::ulysses_by_copies(build) : planner::ulysses_by_slices(build);
    return std::move(build).finish(ring_rounding(problem));
  }
  const Shards shards(build);
  planner::begin_engines(build, shards);
  if (problem.op == Op::mlp)
    planner::plan_ring_mlp(build, shards);
  else if (problem.traits().scatters())
    plan_reducescatter(build, shards);
  if (problem.op == Op::gemm_allreduce) plan_allreduce(build, shards);
  if (problem.op == Op::allgather_gemm) plan_allgather(build, shards);
  return std::move(build).finish(ring_rounding(problem));
}

}  // namespace shingle
