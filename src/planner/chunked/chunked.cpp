// chunked: data slicing. The rows are cut into slices; while one slice is in flight, the next is computed. It
// needs only a GEMM of cuBLASLt or oneDNN and collectives. Its cost: every GEMM is smaller, and communication
// starts only after a whole slice.
#include <fmt/format.h>

#include "chunked.hpp"
#include "planner/common/mlp.hpp"
#include "planner/common/pools.hpp"
#include "planner/common/shard.hpp"
#include "planner/workload/workload.hpp"

namespace shingle {
namespace {

using planner::Builder;
using planner::chunk_begin;
using planner::ChunkedBuilder;
using planner::communicate_lane;
using planner::compute_lane;
using planner::rows_in_slice;

std::int32_t default_chunks(const Problem& problem, const Machine& machine) {
  constexpr std::int32_t most = 4;
  return problem.traits().slices_experts() ? planner::chunks_of_slices(problem, machine, most) : most;
}

/// First rows of the slices, and the end.
std::vector<std::int64_t> boundaries(const ChunkedBuilder& build, std::int64_t rows, std::int64_t unit = 1) {
  const std::int64_t count = smaller(build.params().chunks, larger(ceil_div(rows, unit), 1));
  std::vector<std::int64_t> begins;
  for (std::int64_t i = 0; i <= count; ++i) begins.push_back(chunk_begin(rows, count, i, unit));
  return begins;
}

/// Unit of cuts within a shard: block-cyclic shards are cut between blocks.
std::int64_t shard_unit(const Problem& p) {
  return p.row_order == RowOrder::block_cyclic ? p.row_block : 1;
}

void finish_all(ChunkedBuilder& build, int rank, std::int32_t from, std::int64_t rows, std::int32_t received,
                std::int64_t chunks) {
  for (std::int64_t i = 0; i < chunks; ++i) build.await(rank, compute_lane, received, i);
  planner::finish_rows(build, rank, from, rows);
}

void chunked_allreduce(ChunkedBuilder& build) {
  const Problem& p = build.problem();
  const auto begins = boundaries(build, p.m);
  const auto chunks = static_cast<std::int64_t>(begins.size()) - 1;
  const bool finishing = build.needs_finishing();
  const std::int32_t product = finishing ? build.buffer("product", p.m, p.n) : build.out;
  const std::int32_t computed = build.counter("computed", chunks);
  const std::int32_t received = finishing ? build.counter("received", chunks) : -1;
  for (int r = 0; r < build.ranks(); ++r) {
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t first = begins[i], rows = begins[i + 1] - first;
      const Slice slice = build.rows(product, r, first, rows);
      build.step(
          r, compute_lane,
          build.gemm(r, build.one_tile(rows), RowMap::identity(rows, first), Builder::in_place(slice)));
      build.notify(r, compute_lane, computed, i);
      build.await(r, communicate_lane, computed, i);
      build.collective(r, CollectiveKind::allreduce, slice, slice);
      if (finishing) build.notify(r, communicate_lane, received, i);
    }
    if (finishing) finish_all(build, r, product, p.m, received, chunks);
  }
}

/// Maps for slice [first, first + len) of every shard: rows of A to compute, and the order in which they are
/// stored. They make each rank's part contiguous. One map picks rows; the other is the identity.
struct SliceRows {
  RowMap pick;   // virtual row → row of A (reducescatter) or of the output (allgather)
  RowMap store;  // virtual row → row of the buffer that is communicated
};

SliceRows slice_rows(const Problem& p, std::int64_t first, std::int64_t len) {
  if (p.row_order == RowOrder::block_cyclic)
    return {{1, larger(p.world * len, 1), p.world * len, 0, p.world * first, p.m},
            planner::sharded_rows(p, len)};
  return {{p.world, larger(len, 1), len, p.shard_rows(), first, p.m}, RowMap::identity(p.world * len)};
}

void chunked_reducescatter(ChunkedBuilder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows();
  const auto begins = boundaries(build, shard, shard_unit(p));
  const auto chunks = static_cast<std::int64_t>(begins.size()) - 1;
  const bool direct = !build.needs_finishing() && p.m == p.world * shard;
  const std::int32_t product = build.buffer("product", p.world * shard, p.n);
  const std::int32_t part = direct ? build.out : build.buffer("part", shard, p.n);
  const std::int32_t computed = build.counter("computed", chunks);
  const std::int32_t received = direct ? -1 : build.counter("received", chunks);
  for (int r = 0; r < build.ranks(); ++r) {
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t first = begins[i], len = begins[i + 1] - first;
      const Slice send = build.rows(product, r, p.world * first, p.world * len);
      const SliceRows map = slice_rows(p, first, len);
      Placement store{send, placement::Matrix{map.store}};
      build.step(r, compute_lane,
                 build.gemm(r, build.one_tile(rows_in_slice(p, first, len)), map.pick, std::move(store)));
      build.notify(r, compute_lane, computed, i);
      build.await(r, communicate_lane, computed, i);
      build.collective(r, CollectiveKind::reducescatter, send, build.rows(part, r, first, len));
      if (!direct) build.notify(r, communicate_lane, received, i);
    }
    if (!direct) finish_all(build, r, part, p.out_rows(r), received, chunks);
  }
}

void chunked_allgather(ChunkedBuilder& build) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows();
  const auto begins = boundaries(build, shard, shard_unit(p));
  const auto chunks = static_cast<std::int64_t>(begins.size()) - 1;
  const bool finishing = build.needs_finishing();
  const planner::Shard send(build, chunks);
  const std::int32_t gathered = build.buffer("gathered", p.world * shard, p.gathered_cols());
  const std::int32_t product = finishing ? build.buffer("product", p.m, build.product_cols()) : build.out;
  const std::int32_t arrived = build.counter("arrived", chunks);
  for (int r = 0; r < build.ranks(); ++r) {
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t first = begins[i], len = begins[i + 1] - first;
      send.make(build, r, i, first, len);
      build.collective(r, CollectiveKind::allgather, send.rows(build, r, first, len),
                       build.rows(gathered, r, p.world * first, p.world * len));
      build.notify(r, communicate_lane, arrived, i);
    }
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t first = begins[i], len = begins[i + 1] - first;
      const SliceRows map = slice_rows(p, first, len);
      RowMap a_rows = map.store;
      a_rows.base += p.world * first;
      a_rows.limit += p.world * first;
      Placement store{build.all(product, r), placement::Matrix{map.pick}};
      Gemm gemm = build.gemm(r, build.one_tile(rows_in_slice(p, first, len)), a_rows, std::move(store));
      gemm.a = build.all(gathered, r);
      build.await(r, compute_lane, arrived, i);
      build.step(r, compute_lane, std::move(gemm));
    }
    planner::finish_rows(build, r, product, p.m);
  }
}

planner::Pools slice_pools(const ChunkedBuilder& build) {
  const Problem& p = build.problem();
  const std::int64_t chunks = smaller(build.params().chunks, larger(p.m, 1));
  std::vector<TileGrid> grids;
  std::vector<std::vector<std::int64_t>> ends(p.world);
  for (int r = 0; r < p.world; ++r) {
    // Grids of single rows, in order: any slice can then be a group. Row blocks would be ragged at the end of
    // each slice.
    const std::int64_t rows = p.routing->rows(r);
    grids.push_back(
        make_grid(rows, build.product_cols(), 1, static_cast<std::int32_t>(build.product_cols())));
    for (std::int64_t i = 1; i <= chunks; ++i) ends[r].push_back(chunk_begin(rows, chunks, i));
  }
  return {*p.routing, std::move(grids), std::move(ends)};
}

void chunked_alltoall(ChunkedBuilder& build) {
  const Problem& p = build.problem();
  const planner::Pools pools = slice_pools(build);
  std::vector<std::int64_t> product_rows, sent_rows, received_rows;
  for (int r = 0; r < p.world; ++r) {
    product_rows.push_back(p.routing->rows(r));
    sent_rows.push_back(pools.send_rows(r));
    received_rows.push_back(pools.receive_rows(r));
  }
  const std::int32_t product = build.buffer("product", product_rows, build.product_cols());
  const std::int32_t packed = build.buffer("packed", sent_rows, build.product_cols());
  const std::int32_t arrivals = build.buffer("arrivals", received_rows, build.product_cols());
  const std::int32_t ready = build.counter("packed", pools.groups());
  const std::int32_t received = build.counter("received", pools.groups());
  for (int r = 0; r < p.world; ++r) {
    for (std::int64_t i = 0; i < pools.groups(); ++i) {
      const std::int64_t first = i == 0 ? 0 : pools.ends(r)[i - 1], rows = pools.ends(r)[i] - first;
      build.step(r, compute_lane,
                 build.gemm(r, build.one_tile(rows), RowMap::identity(rows, first),
                            Builder::in_place(build.rows(product, r, first, rows))));
      Elementwise pack;
      pack.grid = pools.grid(r);
      pack.first = first;
      pack.count = rows;
      pack.from.push_back(Builder::in_place(build.all(product, r)));
      pack.to = pools.send(r, build.all(packed, r));
      build.step(r, compute_lane, std::move(pack));
      build.notify(r, compute_lane, ready, i);
      build.await(r, communicate_lane, ready, i);
      build.collective(
          r, CollectiveKind::alltoall,
          build.rows(packed, r, pools.send_first(r, i), pools.send_first(r, i + 1) - pools.send_first(r, i)),
          build.rows(arrivals, r, pools.receive_first(r, i),
                     pools.receive_first(r, i + 1) - pools.receive_first(r, i)),
          pools.sent(r, i), pools.received(r, i));
      build.notify(r, communicate_lane, received, i);
    }
    for (std::int64_t i = 0; i < pools.groups(); ++i) build.await(r, compute_lane, received, i);
    for (int s = 0; s < p.world; ++s)
      build.step(r, compute_lane,
                 build.finishing(r, pools.grid(s), {pools.receive(s, r, build.all(arrivals, r))},
                                 planner::routed_rows(*p.routing, s, r, build.all(build.out, r))));
  }
}

std::optional<Reason> wrong_chunks(const ChunkedParams& params) {
  if (params.chunks >= 0 && params.chunks <= static_cast<std::int32_t>(planner::max_slices))
    return std::nullopt;
  return Reason{
      fmt::format("chunks = {} must be at least 1 and at most {}", params.chunks, planner::max_slices)};
}

}  // namespace

Result<Plan> plan_chunked(const Problem& problem, const Machine& host, const ChunkedParams& params) {
  problem.validate();
  const Machine machine = planner::with_comm_workers(host, params.comm_workers);
  if (auto reason = planner::infeasible(problem, machine, params)) return *reason;
  if (problem.op == Op::alltoall_gemm)
    return Reason{
        "chunked slices the rows that ranks send; those of one slice are scattered over what a rank "
        "multiplies: "
        "use fused"};
  if (auto reason = planner::nothing_to_overlap(problem)) return *reason;
  if (problem.traits().attends) return Reason{"chunked does not plan attention: use ring"};
  if (problem.traits().replicates_tokens())
    return Reason{
        fmt::format("chunks of tokens would read every weight again, and {} sends only sums: use signal or "
                    "fused",
                    name(problem.op))};
  if (auto reason = wrong_chunks(params)) return *reason;
  ChunkedParams chosen;
  chosen.comm_workers = params.comm_workers;
  chosen.symmetric = params.symmetric;
  chosen.chunks = params.chunks > 0 ? params.chunks : default_chunks(problem, machine);
  ChunkedBuilder build(problem, machine, chosen);
  switch (problem.op) {
    case Op::gemm_allreduce:
      chunked_allreduce(build);
      break;
    case Op::gemm_reducescatter:
      chunked_reducescatter(build);
      break;
    case Op::allgather_gemm:
    case Op::gemm_allgather_gemm:
      chunked_allgather(build);
      break;
    case Op::gemm_alltoall:
      chunked_alltoall(build);
      break;
    case Op::alltoall_grouped_gemm:
    case Op::grouped_gemm_alltoall:
    case Op::moe:
      planner::experts_in_chunks(build, machine);
      break;
    case Op::allgather_grouped_gemm:
    case Op::grouped_gemm_reducescatter:
    case Op::moe_tp:
      planner::sliced_experts_in_chunks(build, machine);
      break;
    case Op::mlp:
      planner::plan_mlp_slices(build, boundaries(build, problem.shard_rows()));
      break;
    default:  // refused above
      break;
  }
  // Tensor-parallel experts return sums in messages, which a pass adds.
  const bool by_pass = problem.traits().slices_experts() && problem.traits().after;
  return std::move(build).finish(by_pass ? Rounding{Summing::rank_order, problem.dtype}
                                         : planner::rounding(problem));
}

Result<Plan> plan_chunked(const Workload& workload, const Machine& machine, const ChunkedParams& params) {
  if (auto reason = wrong_chunks(params)) return *reason;
  return planner::plan_workload(workload, machine, params, true);
}

}  // namespace shingle
