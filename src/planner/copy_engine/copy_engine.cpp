// copy-engine: a collective with bytes moved by copy engines, alone or with the GEMM before or after it (DMA
// collectives; docs/mechanisms/copy-engine.md). Engines cannot add, so workers sum the data that engines have
// moved.
#include <algorithm>

#include "choose.hpp"
#include "planner/common/pools.hpp"
#include "planner/common/routed_rows.hpp"
#include "planner/common/symmetry.hpp"
#include "reductions.hpp"
#include "transfers.hpp"

namespace shingle {
namespace {

using planner::Builder;
using planner::compute_lane;
using planner::CopyEngineBuilder;
using planner::Handshake;
using planner::Parcels;
using planner::rows_of_shard;
using planner::Transfer;
using Use = planner::Transfer::Use;

/// Layout of the rows that ranks exchange, by source and destination.
struct Layout {
  std::vector<std::vector<std::int64_t>> rows, first_sent, first_received;  // [source][dest]
  bool sorted = true;     ///< true if every rank's rows are in the order of their destinations
  bool symmetric = true;  ///< true if any two ranks send each other the same number of rows

  explicit Layout(const Routing& routing) {
    const int world = routing.world();
    const auto table = [&] { return std::vector(world, std::vector<std::int64_t>(world)); };
    rows = first_sent = first_received = table();
    std::vector<std::int64_t> received(world, 0);
    for (int s = 0; s < world; ++s) {
      std::int64_t sent = 0;
      for (int d = 0; d < world; ++d) {
        rows[s][d] = routing.count(s, d);
        first_sent[s][d] = sent;
        first_received[s][d] = received[d];
        sent += rows[s][d];
        received[d] += rows[s][d];
        symmetric = symmetric && routing.count(s, d) == routing.count(d, s);
      }
      for (std::int64_t row = 1; row < routing.rows(s); ++row)
        sorted = sorted && routing.dest(s, row - 1) <= routing.dest(s, row);
    }
  }
};

/// Rows of shard `index` in a whole matrix on a rank.
Slice shard_of(const CopyEngineBuilder& build, std::int32_t buffer, int rank, int index) {
  const std::int64_t rows = rows_of_shard(build.problem(), index);
  return build.rows(buffer, rank, rows > 0 ? index * build.problem().shard_rows() : 0, rows);
}

// ----------------------------------------------------------------------------------------------------------
// gathers

/// Parcels of shards, from `own(rank)` to `to` on all ranks, at their place in the whole matrix.
Parcels shards(const CopyEngineBuilder& build, std::function<Slice(int)> own, std::int32_t to) {
  Parcels parcels;
  parcels.same_for_all = true;
  parcels.from = [own = std::move(own)](int source, int) { return own(source); };
  parcels.to = [&build, to](int source, int dest) { return shard_of(build, to, dest, source); };
  return parcels;
}

void plan_gather(CopyEngineBuilder& build, CopyVariant variant) {
  const Problem& p = build.problem();
  const bool multiplies = p.traits().multiplies(), produces = p.op == Op::gemm_allgather_gemm;
  const bool fills = build.params().unregistered && !multiplies;
  const std::int32_t gathered =
      multiplies || fills ? build.buffer("gathered", p.m, p.gathered_cols()) : build.out;
  const std::int32_t product =
      multiplies && build.needs_finishing() ? build.buffer("product", p.m, build.product_cols()) : build.out;
  const Handshake handshake(build);
  const auto own = [&](int r) {  // a first product is made at its place in the gathered matrix
    return produces ? shard_of(build, gathered, r, r) : build.all(build.a, r);
  };
  Transfer transfer(build, shards(build, own, gathered), variant, &handshake);
  for (int r = 0; r < p.world; ++r) {
    if (const Slice made = own(r); produces && made.rows > 0) {
      Gemm gemm = build.triggering(build.up_gemm(r, build.one_tile(made.rows, made.cols),
                                                 RowMap::identity(made.rows), Builder::in_place(made)));
      transfer.hook(gemm.grid, gemm.notify, r);
      build.step(r, compute_lane, std::move(gemm));
    }
    transfer.ready(build, r);
    if (!produces) build.copy_rows(r, own(r), shard_of(build, fills ? build.out : gathered, r, r));
    const auto fill = [&](int s) {
      build.copy_rows(r, shard_of(build, gathered, r, s), shard_of(build, build.out, r, s));
    };
    transfer.arrived(build, r, fills ? fill : Use{});
    if (!multiplies) continue;
    Gemm gemm =
        build.gemm(r, build.one_tile(p.m), RowMap::identity(p.m), Builder::in_place(build.all(product, r)));
    gemm.a = build.all(gathered, r);
    build.step(r, compute_lane, std::move(gemm));
    planner::finish_rows(build, r, product, p.m);
  }
}

// ----------------------------------------------------------------------------------------------------------
// exchanges of rows

/// Parcels of routed rows, from `source` to `target`. They are exchanged in place if both are the same
/// buffer.
Parcels routed(const CopyEngineBuilder& build, const Layout& layout, std::int32_t source,
               std::int32_t target) {
  Parcels parcels;
  parcels.from = [&build, &layout, source](int s, int d) {
    return build.rows(source, s, layout.first_sent[s][d], layout.rows[s][d]);
  };
  parcels.to = [&build, &layout, target](int s, int d) {
    return build.rows(target, d, layout.first_received[s][d], layout.rows[s][d]);
  };
  return parcels;
}

/// Columns that are sent: of the product, or of A.
std::int64_t routed_cols(const CopyEngineBuilder& build) {
  return build.problem().op == Op::alltoall_gemm ? build.problem().k : build.product_cols();
}

void plan_exchange(CopyEngineBuilder& build, CopyVariant variant, const Layout& layout) {
  const Problem& p = build.problem();
  const Routing& routing = *p.routing;
  const bool before = p.op == Op::gemm_alltoall, after = p.op == Op::alltoall_gemm;
  const bool in_place = variant == CopyVariant::swap;
  const auto [sent, received] = planner::RoutedRows(routing);
  const std::int64_t cols = routed_cols(build);
  const bool finishing = build.needs_finishing();
  const bool fills = build.params().unregistered && !after && !finishing;
  const std::int32_t target =
      after || finishing || fills ? build.buffer("arrivals", received, cols) : build.out;
  const std::int32_t landed = fills ? build.out : target;
  const std::int32_t made =
      before ? (layout.sorted && in_place ? target : build.buffer("product", sent, cols)) : build.a;
  // Rows to send are in the order of their destinations.
  std::int32_t source = made;
  if (in_place) {
    source = target;
  } else if (!layout.sorted) {
    source = build.buffer("packed", sent, cols);
  }
  const std::int32_t result =
      after && finishing ? build.buffer("product", received, build.product_cols()) : build.out;
  const Handshake handshake(build);
  Transfer transfer(build, routed(build, layout, source, target), variant, &handshake);
  const auto from = [&](int s, int r, std::int32_t buffer) {  // the rows of rank s on rank r
    return build.rows(buffer, r, layout.first_received[s][r], layout.rows[s][r]);
  };
  const auto fill = [&](int s, int r) { build.copy_rows(r, from(s, r, target), from(s, r, build.out)); };
  for (int r = 0; r < p.world; ++r) {
    if (before) {
      Gemm gemm = build.gemm(r, build.one_tile(sent[r]), RowMap::identity(sent[r]),
                             Builder::in_place(build.all(made, r)));
      if (source == made) {
        gemm = build.triggering(std::move(gemm));
        transfer.hook(gemm.grid, gemm.notify, r);
      }
      build.step(r, compute_lane, std::move(gemm));
    }
    if (source != made && layout.sorted) {
      build.copy_rows(r, build.all(made, r), build.all(source, r));
    } else if (source != made) {
      Elementwise pass = planner::pack(routing, r, build.row_blocks(sent[r], cols),
                                       Builder::in_place(build.all(made, r)), build.all(source, r));
      transfer.hook(pass.grid, pass.notify, r);
      build.step(r, compute_lane, std::move(pass));
    }
    transfer.ready(build, r);
    if (!in_place)
      build.copy_rows(r, build.rows(source, r, layout.first_sent[r][r], layout.rows[r][r]),
                      from(r, r, landed));
    else if (fills)
      fill(r, r);
    transfer.arrived(build, r, fills ? Use([&](int s) { fill(s, r); }) : Use{});
    if (after) {
      Gemm gemm = build.gemm(r, build.one_tile(received[r]), RowMap::identity(received[r]),
                             Builder::in_place(build.all(result, r)));
      gemm.a = build.all(target, r);
      build.step(r, compute_lane, std::move(gemm));
      planner::finish_rows(build, r, result, received[r]);
    } else {
      planner::finish_rows(build, r, landed, received[r]);
    }
  }
}

Rounding engine_rounding(const Problem& p) {
  if (!p.traits().reduces()) return planner::rounding(p);
  return {Summing::rank_order, p.dtype};
}

}  // namespace

Result<Plan> plan_copy_engine(const Problem& problem, const Machine& host, const CopyEngineParams& params) {
  problem.validate();
  Machine machine = host;
  machine.collective_workers = 0;  // no collective takes part
  if (auto reason = planner::infeasible(problem, machine, params)) return *reason;
  if (auto reason = planner::needs_all_ranks(problem, params.symmetric, "copy-engine")) return *reason;
  std::optional<Layout> layout;
  if (problem.traits().routes()) layout.emplace(*problem.routing);
  const auto chosen = planner::engine_params(problem, machine, params, !layout || layout->symmetric);
  if (!chosen) return Reason{chosen.reason()};
  CopyEngineBuilder build(problem, machine, *chosen);
  if (problem.traits().routes()) {
    plan_exchange(build, chosen->variant, *layout);
  } else if (problem.traits().shards_a()) {
    plan_gather(build, chosen->variant);
  } else if (problem.traits().scatters()) {
    planner::plan_reducescatter(build, chosen->variant);
  } else {
    planner::plan_allreduce(build, chosen->variant);
  }
  return std::move(build).finish(engine_rounding(problem));
}

}  // namespace shingle
