// gemm+reducescatter and gemm+allreduce without a collective (FLUX §3.1, Algorithm 1; the reduction is ours).
//
// A GEMM's tile is stored into its owner's staging, in a region of the source's own, and counted there. The
// owner sums the regions in rank order, band by band as they are complete: by a few workers beside its own
// GEMM, and by all of them after it, from one queue. For allreduce whoever sums a band stores it on every
// rank; in one shot, everybody sums everything.
#include "fused.hpp"

namespace shingle::planner {
namespace {

/// One sum over `rows` rows: who stores into the staging of whom, and what the sums become.
struct Reduction {
  std::int32_t staging;  ///< a region of `tiles.shard` rows for each source
  std::int32_t stored;   ///< by band: tiles that have come from all ranks
};

/// The sum of the sources' regions on a rank, band by band, as a pass of which `to` gets the result.
Elementwise sum_pass(Builder& build, const ShardTiles& tiles, const Reduction& at, int rank,
                     std::int64_t rows, Placement to) {
  const Problem& p = build.problem();
  Elementwise pass;
  pass.grid = make_grid(rows, p.n, tiles.inner.tile_rows, tiles.inner.tile_cols);
  for (int source = 0; source < p.world; ++source)
    pass.from.push_back(Builder::in_place(build.rows(at.staging, rank, source * tiles.shard, rows)));
  pass.to = std::move(to);
  if (!build.row_wise_finishing()) {
    pass.epilogue = p.epilogue;
    if (p.epilogue.bias) pass.bias = build.all(build.bias, rank);
  }
  TileGate gate{at.stored, {}, {}};
  for (std::int64_t band = 0; band < tiles.bands; ++band) {
    const std::int64_t tall =
        smaller(ceil_div((band + 1) * tiles.band_rows, pass.grid.tile_rows), pass.grid.tiles_m());
    gate.ends.push_back(tall * pass.grid.tiles_n());
    gate.targets.push_back(static_cast<std::uint32_t>(p.world) * tiles.tiles_in(band));
  }
  pass.gates.push_back(std::move(gate));
  pass.queue = 0;
  return pass;
}

/// The pass by helpers beside the GEMM and by everybody after it.
void share(Builder& build, int rank, Elementwise pass) {
  const std::int32_t helpers = build.params().helpers;
  if (helpers > 0) {
    Elementwise beside = pass;
    beside.resources = {1, helpers};
    build.step(rank, build.lane(rank, LaneKind::compute, "reduce"), std::move(beside));
  }
  pass.resources = {1, build.workers() - helpers};
  build.step(rank, compute_lane, std::move(pass));
}

void await_tiles(Builder& build, int rank, std::int32_t counter, std::int64_t entry, const TileGrid& grid) {
  if (grid.tiles() > 0)
    build.await(rank, compute_lane, counter, entry, static_cast<std::uint32_t>(grid.tiles()));
}

/// Counts every tile of a pass in entry `entry` on `ranks`.
TileNotify count_all(std::int32_t counter, std::vector<std::int32_t> ranks, const TileGrid& grid,
                     std::int32_t entry) {
  return {counter, std::move(ranks), {grid.positions()}, {entry}};
}

std::int32_t staging_buffer(Builder& build, std::int64_t rows) {
  return build.typed_buffer("staging", build.params().stage_fp32 ? DType::f32 : build.problem().dtype, rows,
                            build.problem().n);
}

std::vector<std::int32_t> everyone(int world) {
  std::vector<std::int32_t> ranks;
  for (int r = 0; r < world; ++r) ranks.push_back(r);
  return ranks;
}

/// Every rank sums its shard; for allreduce it stores the sums on all.
void by_shards(Builder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const bool gathers = p.op == Op::gemm_allreduce;
  const ShardTiles tiles(p.world, p.m, p.n, machine, build.params());
  const Reduction at{staging_buffer(build, p.world * tiles.shard), build.counter("stored", tiles.bands)};
  const std::int32_t summed =
      build.row_wise_finishing() ? build.buffer("summed", gathers ? p.m : tiles.shard, p.n) : build.out;
  // Who has to know that a shard is summed: for reducescatter its rank, and only if rows are finished after
  // that.
  const bool counts = gathers || build.row_wise_finishing();
  const std::int32_t complete = counts ? build.counter("summed", p.world) : -1;
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    handshake.await_all(build, r, compute_lane);
    Placement store;
    store.kind = PlacementKind::owners;
    store.slice = build.rows(at.staging, r, r * tiles.shard, tiles.shard);
    store.rows = tiles.rows();
    const int first = (r + 1) % p.world;  // the own shard comes last: nobody waits for its way
    Gemm gemm = build.gemm(r, tiles.grid(first), tiles.rows(), std::move(store));
    TileNotify notify{at.stored, {}, tiles.ends()};
    for (int i = 0; i < p.world; ++i)
      for (std::int64_t band = 0; band < tiles.bands; ++band) {
        notify.entries.push_back(static_cast<std::int32_t>(band));
        notify.owners.push_back((first + i) % p.world);
      }
    gemm.notify.push_back(std::move(notify));
    gemm.resources = {1, build.workers() - build.params().helpers};
    build.step(r, compute_lane, std::move(gemm));

    const std::int64_t rows = tiles.rows_of(r);
    Placement to =
        Builder::in_place(build.rows(summed, r, gathers ? smaller(r * tiles.shard, p.m) : 0, rows));
    if (gathers) to.ranks = everyone(p.world);
    Elementwise pass = sum_pass(build, tiles, at, r, rows, std::move(to));
    if (counts)
      pass.notify.push_back(
          count_all(complete, gathers ? everyone(p.world) : std::vector<std::int32_t>{r}, pass.grid, r));
    const TileGrid own = pass.grid;
    share(build, r, std::move(pass));
    if (!counts) continue;
    for (int s = 0; s < p.world; ++s) {
      TileGrid theirs = own;
      theirs.rows = tiles.rows_of(s);
      if (gathers || s == r) await_tiles(build, r, complete, s, theirs);
    }
    if (build.row_wise_finishing()) finish_rows(build, r, summed, p.out_rows(r));
  }
}

/// Every rank sends all it has to everybody, who sums it all: more bytes, one hop less.
void in_one_shot(Builder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const ShardTiles tiles(1, p.m, p.n, machine, build.params());
  const Reduction at{staging_buffer(build, p.world * p.m), build.counter("stored", tiles.bands)};
  const bool finishes = build.row_wise_finishing();
  const std::int32_t summed = finishes ? build.buffer("summed", p.m, p.n) : build.out;
  const std::int32_t complete = finishes ? build.counter("summed", 1) : -1;
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    handshake.await_all(build, r, compute_lane);
    Placement store = Builder::in_place(build.rows(at.staging, r, r * p.m, p.m));
    store.rows = tiles.rows();
    store.ranks = everyone(p.world);
    Gemm gemm = build.gemm(r, tiles.grid(0), tiles.rows(), std::move(store));
    TileNotify notify{at.stored, everyone(p.world), tiles.ends()};
    gemm.notify.push_back(std::move(notify));
    gemm.resources = {1, build.workers() - build.params().helpers};
    build.step(r, compute_lane, std::move(gemm));
    Elementwise pass = sum_pass(build, tiles, at, r, p.m, Builder::in_place(build.rows(summed, r, 0, p.m)));
    if (finishes) pass.notify.push_back(count_all(complete, {r}, pass.grid, 0));
    const TileGrid grid = pass.grid;
    share(build, r, std::move(pass));
    if (!finishes) continue;
    await_tiles(build, r, complete, 0, grid);
    finish_rows(build, r, summed, p.m);
  }
}

}  // namespace

void fuse_reduction(Builder& build, const Machine& machine) {
  if (build.params().one_shot) {
    in_one_shot(build, machine);
  } else {
    by_shards(build, machine);
  }
}

}  // namespace shingle::planner
