// sequential: a GEMM of cuBLASLt or oneDNN, then a collective. The compute and communicate lanes take turns.
#include "sequential.hpp"
#include "planner/common/merged_slots.hpp"
#include "planner/common/mlp.hpp"
#include "planner/common/pools.hpp"
#include "planner/common/routed_rows.hpp"
#include "planner/common/shard.hpp"
#include "planner/common/ulysses.hpp"
#include "planner/workload/workload.hpp"

namespace shingle {
namespace {

using planner::Builder;
using planner::communicate_lane;
using planner::compute_lane;
using planner::finish_rows;
using planner::hand_over;
using planner::pack;

void plan_gemm(Builder& build) {
  const std::int64_t m = build.problem().m;
  const std::int32_t product =
      build.needs_finishing() ? build.buffer("product", m, build.product_cols()) : build.out;
  for (int r = 0; r < build.ranks(); ++r) {
    build.step(
        r, compute_lane,
        build.gemm(r, build.one_tile(m), RowMap::identity(m), Builder::in_place(build.all(product, r))));
    finish_rows(build, r, product, m);
  }
}

void sequential_allreduce(Builder& build) {
  const std::int64_t m = build.problem().m;
  const std::int32_t product =
      build.needs_finishing() ? build.buffer("product", m, build.product_cols()) : build.out;
  const std::int32_t computed = build.counter("computed", 1);
  const std::int32_t received = build.needs_finishing() ? build.counter("received", 1) : -1;
  for (int r = 0; r < build.ranks(); ++r) {
    build.step(
        r, compute_lane,
        build.gemm(r, build.one_tile(m), RowMap::identity(m), Builder::in_place(build.all(product, r))));
    hand_over(build, r, computed, compute_lane, communicate_lane);
    build.collective(r, CollectiveKind::allreduce, build.all(product, r), build.all(product, r));
    if (received >= 0) {
      hand_over(build, r, received, communicate_lane, compute_lane);
      finish_rows(build, r, product, m);
    }
  }
}

void sequential_reducescatter(Builder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows();
  const std::int32_t product = build.buffer("product", p.world * shard, p.n);
  const std::int32_t attended = p.traits().attends ? build.buffer("attended", p.m, p.k) : -1;
  // NCCL and MPI need equal parts. If M leaves a short last shard, its rows are copied out of a full part.
  const bool direct = !build.needs_finishing() && p.m == p.world * shard;
  const std::int32_t part = direct ? build.out : build.buffer("part", shard, p.n);
  const std::int32_t computed = build.counter("computed", 1);
  const std::int32_t received = direct ? -1 : build.counter("received", 1);
  for (int r = 0; r < build.ranks(); ++r) {
    Placement store{build.all(product, r), placement::Matrix{planner::sharded_rows(p, shard)}};
    Gemm gemm = build.gemm(r, build.one_tile(p.m), RowMap::identity(p.m), std::move(store));
    if (p.traits().attends) {
      gemm.a = build.all(attended, r);
      build.step(r, compute_lane, build.attend(r, 0, p.m, gemm.a));
    }
    build.step(r, compute_lane, std::move(gemm));
    hand_over(build, r, computed, compute_lane, communicate_lane);
    build.collective(r, CollectiveKind::reducescatter, build.all(product, r), build.all(part, r));
    if (!direct) {
      hand_over(build, r, received, communicate_lane, compute_lane);
      finish_rows(build, r, part, p.out_rows(r));
    }
  }
}

void sequential_allgather(Builder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows();
  const planner::Shard send(build, 1);
  const std::int32_t gathered = build.buffer("gathered", p.world * shard, p.gathered_cols());
  const std::int32_t product =
      build.needs_finishing() ? build.buffer("product", p.m, build.product_cols()) : build.out;
  const std::int32_t arrived = build.counter("arrived", 1);
  for (int r = 0; r < build.ranks(); ++r) {
    send.make(build, r, 0, 0, shard);
    build.collective(r, CollectiveKind::allgather, send.rows(build, r, 0, shard), build.all(gathered, r));
    hand_over(build, r, arrived, communicate_lane, compute_lane);
    Gemm gemm = build.gemm(r, build.one_tile(p.m), planner::sharded_rows(p, shard),
                           Builder::in_place(build.all(product, r)));
    gemm.a = build.all(gathered, r);
    build.step(r, compute_lane, std::move(gemm));
    finish_rows(build, r, product, p.m);
  }
}

void sequential_alltoall(Builder& build) {
  const Problem& p = build.problem();
  const Routing& routing = *p.routing;
  const auto [sent, received_rows] = planner::RoutedRows(routing);
  const std::int32_t product = build.buffer("product", sent, build.product_cols());
  const std::int32_t packed = build.buffer("packed", sent, build.product_cols());
  const bool direct = !build.needs_finishing();
  const std::int32_t target =
      direct ? build.out : build.buffer("received", received_rows, build.product_cols());
  const std::int32_t ready = build.counter("packed", 1);
  const std::int32_t arrived = direct ? -1 : build.counter("arrived", 1);
  for (int r = 0; r < p.world; ++r) {
    const std::int64_t rows = sent[r];
    build.step(r, compute_lane,
               build.gemm(r, build.one_tile(rows), RowMap::identity(rows),
                          Builder::in_place(build.all(product, r))));
    build.step(r, compute_lane,
               pack(routing, r, build.row_blocks(rows, build.product_cols()),
                    Builder::in_place(build.all(product, r)), build.all(packed, r)));
    std::vector<std::int64_t> send_rows, recv_rows;
    for (int peer = 0; peer < p.world; ++peer) {
      send_rows.push_back(routing.count(r, peer));
      recv_rows.push_back(routing.count(peer, r));
    }
    hand_over(build, r, ready, compute_lane, communicate_lane);
    build.collective(r, CollectiveKind::alltoall, build.all(packed, r), build.all(target, r), send_rows,
                     recv_rows);
    if (!direct) {
      hand_over(build, r, arrived, communicate_lane, compute_lane);
      finish_rows(build, r, target, received_rows[r]);
    }
  }
}

void plan_dispatch(Builder& build) {
  const Problem& p = build.problem();
  const Routing& routing = *p.routing;
  const bool finishing = build.needs_finishing();
  const auto [sent, received] = planner::RoutedRows(routing);
  const std::int32_t packed = build.buffer("packed", sent, p.k);
  const std::int32_t arrivals = build.buffer("arrivals", received, p.k);
  const std::int32_t product =
      finishing ? build.buffer("product", received, build.product_cols()) : build.out;
  const std::int32_t ready = build.counter("packed", 1);
  const std::int32_t arrived = build.counter("arrived", 1);
  for (int r = 0; r < p.world; ++r) {
    build.step(r, compute_lane,
               pack(routing, r, build.row_blocks(sent[r], p.k), Builder::in_place(build.all(build.a, r)),
                    build.all(packed, r)));
    hand_over(build, r, ready, compute_lane, communicate_lane);
    std::vector<std::int64_t> send_rows, recv_rows;
    for (int peer = 0; peer < p.world; ++peer) {
      send_rows.push_back(routing.count(r, peer));
      recv_rows.push_back(routing.count(peer, r));
    }
    build.collective(r, CollectiveKind::alltoall, build.all(packed, r), build.all(arrivals, r), send_rows,
                     recv_rows);
    hand_over(build, r, arrived, communicate_lane, compute_lane);
    Gemm gemm = build.gemm(r, build.one_tile(received[r]), RowMap::identity(received[r]),
                           Builder::in_place(build.all(product, r)));
    gemm.a = build.all(arrivals, r);
    build.step(r, compute_lane, std::move(gemm));
    finish_rows(build, r, product, received[r]);
  }
}

}  // namespace

Result<Plan> plan_sequential(const Problem& problem, const Machine& host, const SequentialParams& params) {
  problem.validate();
  SequentialParams chosen;
  chosen.comm_workers = params.comm_workers;
  chosen.slots = planner::slot_order(problem, host, {}, params.slots);
  chosen.symmetric = params.symmetric;
  const Machine machine = planner::with_comm_workers(host, chosen.comm_workers);
  if (auto reason = planner::infeasible(problem, machine, chosen)) return *reason;
  planner::ParamBuilder<SequentialParams> build(problem, machine, chosen);
  switch (problem.op) {
    case Op::gemm:
      plan_gemm(build);
      break;
    case Op::gemm_allreduce:
      sequential_allreduce(build);
      break;
    case Op::gemm_reducescatter:
    case Op::attention_reducescatter:
      sequential_reducescatter(build);
      break;
    case Op::ulysses_attention:
      planner::ulysses_in_sequence(build);
      break;
    case Op::allgather_attention:
      planner::gather_keys(build);
      break;
    case Op::attention_backward:
      planner::attend_backward_in_sequence(build);
      break;
    case Op::allgather_gemm:
    case Op::gemm_allgather_gemm:
      sequential_allgather(build);
      break;
    case Op::gemm_alltoall:
      sequential_alltoall(build);
      break;
    case Op::alltoall_gemm:
      plan_dispatch(build);
      break;
    case Op::alltoall_grouped_gemm:
    case Op::grouped_gemm_alltoall:
    case Op::moe:
      planner::experts_in_sequence(build, machine);
      break;
    case Op::allgather_grouped_gemm:
    case Op::grouped_gemm_reducescatter:
    case Op::moe_tp:
      planner::sliced_experts_in_sequence(build, machine, chosen.slots == SlotOrder::merged);
      break;
    case Op::grouped_gemm_allreduce:
    case Op::moe_allreduce:
      planner::replicated_tokens_in_sequence(build, machine);
      break;
    case Op::mlp:
      planner::plan_mlp_slices(build, {0, problem.shard_rows()});
      break;
    case Op::allgather:
    case Op::reducescatter:
    case Op::allreduce:
    case Op::alltoall:
      planner::call_library(build);
      break;
  }
  return std::move(build).finish(planner::rounding(problem));
}

Result<Plan> plan_sequential(const Workload& workload, const Machine& machine,
                             const SequentialParams& params) {
  return planner::plan_workload(workload, machine, params, false);
}

}  // namespace shingle
