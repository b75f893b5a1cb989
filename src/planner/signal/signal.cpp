// signal: FlashOverlap (docs/mechanisms/signal.md). One GEMM, unchanged except for the placement and the
// counting of its tiles. NCCL or MPI is unchanged. A buffer in execution order connects the two.
#include <fmt/format.h>

#include "experts.hpp"
#include "grid.hpp"
#include "planner/common/builder.hpp"
#include "planner/common/param_table.hpp"
#include "planner/common/pools.hpp"

namespace shingle {
namespace {

using planner::Builder;
using planner::communicate_lane;
using planner::compute_lane;

constexpr std::int64_t max_tiles = std::int64_t{1} << 28;  // counts of several epochs stay below 2^31

/// Positions at which the groups end, from the number of waves in each.
Result<std::vector<std::int64_t>> group_ends(const TileGrid& grid, std::int64_t workers,
                                             std::vector<std::int64_t>& sizes) {
  if (grid.positions() > max_tiles)
    return Reason{fmt::format("a grid of {} tiles is more than is counted in 32 bits; take larger tiles",
                              grid.positions())};
  const std::int64_t waves = ceil_div(grid.positions(), workers);
  if (waves == 0 && sizes.empty()) return std::vector<std::int64_t>{0};  // no rank has rows
  if (sizes.empty()) sizes = planner::default_partition(waves);
  std::vector<std::int64_t> ends;
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size > waves - sum) {
      sum = -1;
      break;
    }
    ends.push_back(smaller((sum += size) * workers, grid.positions()));
  }
  if (sum != waves)
    return Reason{fmt::format("the groups do not add up: the GEMM has {} waves of {} tiles ({} in all)",
                              waves, workers, grid.positions())};
  return ends;
}

/// Target of each group's count: its number of tiles.
std::vector<std::uint32_t> tiles_in_groups(const TileGrid& grid, const std::vector<std::int64_t>& ends) {
  std::vector<std::uint32_t> counts;
  std::int64_t before = 0;
  for (const std::int64_t end : ends) {
    const std::int64_t tiles = grid.tiles_before(end);
    counts.push_back(static_cast<std::uint32_t>(tiles - before));
    before = tiles;
  }
  return counts;
}

/// The two counter tables of the mechanism, and the hooks that use them.
struct Signals {
  std::int32_t computed;
  std::int32_t received;

  Signals(Builder& build, std::int64_t groups)
      : computed(build.counter("computed", groups)), received(build.counter("received", groups)) {}

  TileNotify count_tiles(int rank, const std::vector<std::int64_t>& ends) const {
    return {computed, {rank}, ends};
  }
  TileGate await_group(const std::vector<std::int64_t>& ends) const {
    return {received, ends, std::vector<std::uint32_t>(ends.size(), 1)};
  }
};

/// The restore: a pass that puts the tiles back in order, alone or with the epilogue and norm. It follows the
/// groups in order of arrival. If it needs complete rows, the lane's first pass awaits all groups instead.
void restore(Builder& build, int rank, const Signals& signals, Elementwise pass,
             const std::vector<std::int64_t>& ends, bool first = true) {
  if (row_wise(pass)) {
    for (std::size_t g = 0; first && g < ends.size(); ++g)
      build.await(rank, compute_lane, signals.received, static_cast<std::int64_t>(g));
  } else {
    pass.gates.push_back(signals.await_group(ends));
  }
  build.step(rank, compute_lane, std::move(pass));
}

void plan_allreduce(Builder& build, const TileGrid& grid, const std::vector<std::int64_t>& ends) {
  const Problem& p = build.problem();
  const std::int32_t staging = build.buffer("staging", grid.rows_before(grid.positions()), grid.tile_cols);
  const Signals signals(build, static_cast<std::int64_t>(ends.size()));
  const auto targets = tiles_in_groups(grid, ends);
  for (int r = 0; r < build.ranks(); ++r) {
    Gemm gemm = build.gemm(r, grid, RowMap::identity(p.m), Builder::stacked(build.all(staging, r)));
    gemm.notify.push_back(signals.count_tiles(r, ends));
    build.step(r, compute_lane, std::move(gemm));
    for (std::size_t g = 0; g < ends.size(); ++g) {
      const std::int64_t first = g == 0 ? 0 : grid.rows_before(ends[g - 1]);
      const Slice slice = build.rows(staging, r, first, grid.rows_before(ends[g]) - first);
      build.await(r, communicate_lane, signals.computed, static_cast<std::int64_t>(g), targets[g]);
      build.collective(r, CollectiveKind::allreduce, slice, slice);
      build.notify(r, communicate_lane, signals.received, static_cast<std::int64_t>(g));
    }
    restore(build, r, signals,
            build.finishing(r, grid, {Builder::stacked(build.all(staging, r))},
                            Builder::in_place(build.all(build.out, r))),
            ends);
  }
}

/// Every tile holds `block` rows of each rank's shard.
///
/// With contiguous shards, a tile takes its rows of A from all shards, so that no row is exchanged
/// afterwards. With block-cyclic shards, A is read in order, and the rows stay dealt in blocks.
RowMap tile_rows_of_a(const Problem& p, std::int64_t block) {
  const std::int64_t shard = p.shard_rows();
  if (p.row_order == RowOrder::block_cyclic) return {1, p.world * shard, p.world * shard, 0, 0, p.m};
  return {p.world, block, shard, shard, 0, p.m};
}

void plan_reducescatter(Builder& build, const TileGrid& grid, const std::vector<std::int64_t>& ends) {
  const Problem& p = build.problem();
  const std::int64_t block = grid.tile_rows / p.world;
  // The same tiles in the same order, as one rank sees them: `block` rows of each.
  TileGrid own = grid;
  own.rows = p.shard_rows();
  own.tile_rows = static_cast<std::int32_t>(block);
  const std::int32_t staging = build.buffer("staging", grid.rows_before(grid.positions()), grid.tile_cols);
  const Signals signals(build, static_cast<std::int64_t>(ends.size()));
  const auto targets = tiles_in_groups(grid, ends);
  for (int r = 0; r < build.ranks(); ++r) {
    Placement store{build.all(staging, r), placement::Subtiles{ends, p.world}};
    Gemm gemm = build.gemm(r, grid, tile_rows_of_a(p, block), std::move(store));
    gemm.notify.push_back(signals.count_tiles(r, ends));
    build.step(r, compute_lane, std::move(gemm));
    // In place: the sum of a group's own part is received where the part was computed.
    placement::Slots arrived{ends};
    for (std::size_t g = 0; g < ends.size(); ++g) {
      const std::int64_t from = g == 0 ? 0 : grid.rows_before(ends[g - 1]), to = grid.rows_before(ends[g]);
      const std::int64_t part = (to - from) / p.world;
      arrived.bases.push_back(from + r * part);
      build.await(r, communicate_lane, signals.computed, static_cast<std::int64_t>(g), targets[g]);
      build.collective(r, CollectiveKind::reducescatter, build.rows(staging, r, from, to - from),
                       build.rows(staging, r, arrived.bases.back(), part));
      build.notify(r, communicate_lane, signals.received, static_cast<std::int64_t>(g));
    }
    const RowMap rows{1, larger(own.rows, 1), own.rows, 0, 0, p.out_rows(r)};  // the last shards may be short
    restore(build, r, signals,
            build.finishing(r, own, {{build.all(staging, r), std::move(arrived)}},
                            {build.all(build.out, r), placement::Matrix{rows}}),
            ends);
  }
}

void plan_alltoall(Builder& build, const planner::Pools& pools) {
  const Problem& p = build.problem();
  std::vector<std::int64_t> sent_rows, received_rows;
  for (int r = 0; r < p.world; ++r) {
    sent_rows.push_back(pools.send_rows(r));
    received_rows.push_back(pools.receive_rows(r));
  }
  const std::int32_t staging = build.buffer("staging", sent_rows, pools.grid(0).tile_cols);
  const std::int32_t arrivals = build.buffer("arrivals", received_rows, pools.grid(0).tile_cols);
  const Signals signals(build, pools.groups());
  for (int r = 0; r < p.world; ++r) {
    const auto& ends = pools.ends(r);
    const auto targets = tiles_in_groups(pools.grid(r), ends);
    Gemm gemm = build.gemm(r, pools.grid(r), RowMap::identity(p.routing->rows(r)),
                           pools.send(r, build.all(staging, r)));
    gemm.notify.push_back(signals.count_tiles(r, ends));
    build.step(r, compute_lane, std::move(gemm));
    for (std::int64_t g = 0; g < pools.groups(); ++g) {
      const std::int64_t out = pools.send_first(r, g), in = pools.receive_first(r, g);
      build.await(r, communicate_lane, signals.computed, g, targets[static_cast<std::size_t>(g)]);
      build.collective(r, CollectiveKind::alltoall,
                       build.rows(staging, r, out, pools.send_first(r, g + 1) - out),
                       build.rows(arrivals, r, in, pools.receive_first(r, g + 1) - in), pools.sent(r, g),
                       pools.received(r, g));
      build.notify(r, communicate_lane, signals.received, g);
    }
    for (int s = 0; s < p.world; ++s)
      restore(build, r, signals,
              build.finishing(r, pools.grid(s), {pools.receive(s, r, build.all(arrivals, r))},
                              planner::routed_rows(*p.routing, s, r, build.all(build.out, r))),
              pools.ends(s), s == 0);
  }
}

}  // namespace

Result<Plan> plan_signal(const Problem& problem, const Machine& host, const SignalParams& params) {
  const Machine machine = planner::with_comm_workers(host, params.comm_workers);
  if (problem.traits().grouped) return planner::signal_experts(problem, machine, params);
  const auto served = planner::signal_grid(problem, machine, params);
  if (!served) return Reason{served.reason()};
  if (auto reason = planner::wrong_groups(params)) return *reason;
  const planner::SignalGrid& tiles = served.value();
  const TileGrid& grid = tiles.grid;
  SignalParams chosen = params;
  chosen.equal_groups = false;  // from here on, group_waves hold the groups
  chosen.tile = {grid.tile_rows, grid.tile_cols, tiles.order};
  const auto ends = group_ends(grid, tiles.workers, chosen.group_waves);
  if (!ends) return Reason{ends.reason()};

  planner::ParamBuilder<SignalParams> build(problem, machine, chosen);
  switch (problem.op) {
    case Op::gemm_allreduce:
      plan_allreduce(build, grid, *ends);
      break;
    case Op::gemm_reducescatter:
      plan_reducescatter(build, grid, *ends);
      break;
    default: {
      // Ranks with fewer rows have the same number of groups, each in proportion.
      std::vector<std::vector<std::int64_t>> rank_ends(problem.world);
      for (int r = 0; r < problem.world; ++r)
        for (const std::int64_t end : *ends) rank_ends[r].push_back(tiles.end_on(r, end));
      plan_alltoall(build, {*problem.routing, tiles.ranks, std::move(rank_ends)});
    }
  }
  return std::move(build).finish(planner::rounding(problem));
}

}  // namespace shingle
