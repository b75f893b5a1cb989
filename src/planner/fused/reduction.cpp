// gemm+reducescatter and gemm+allreduce without a collective (FLUX §3.1, Algorithm 1; the reduction is ours).
//
// A GEMM's tile is stored to its owner's staging buffer, in a region of the source, and counted there. The
// owner adds the regions of a band once all ranks have stored it: in the epilogue of its own tiles, whose
// products then need no staging, or in a pass. A pass sums in rank order; a few workers run it beside the
// GEMM, and all workers after it, from one work queue.
//
// For allreduce, the owner of a band stores its sums on every rank. In one shot, every rank sums all rows. If
// ranks cannot access each other's output, sums go to an internal buffer. From there they are copied to the
// output, band by band. An epilogue stores the owner's sums to its output as well, so that only those of the
// other ranks are copied.
#include "reduction.hpp"

namespace shingle::planner {
namespace {

/// Staging of one sum over `rows` rows.
struct Reduction {
  std::int32_t staging;  ///< buffer: a region for each source
  std::int64_t region;   ///< rows of a region
  std::int32_t stored;   ///< counter, by band: tiles that all ranks have stored
};

/// Height of the tiles of a sum: that of the GEMM's tiles, or less if there would be too few tiles for the
/// workers.
std::int32_t height(const ShardTiles& tiles, std::int64_t rows, std::int64_t cols, std::int64_t workers) {
  constexpr std::int32_t least = 32;
  std::int32_t tall = tiles.inner.tile_rows;
  while (tall % 2 == 0 && tall > least &&
         ceil_div(rows, tall) * ceil_div(cols, tiles.inner.tile_cols) < 2 * workers)
    tall /= 2;
  return tall;
}

/// Tiles of a sum over `rows` rows of a region, band by band.
TileGrid sum_grid(const FusedBuilder& build, const ShardTiles& tiles, std::int64_t region,
                  std::int64_t rows) {
  const std::int64_t cols = build.problem().n;
  const auto across = static_cast<std::int32_t>(tiles.band_cols / tiles.inner.tile_cols);
  return make_grid(rows, cols, height(tiles, region, cols, build.workers()), tiles.inner.tile_cols,
                   across > 0 ? TileOrder{Raster::along_m, across, 1, 1, 0} : TileOrder{});
}

/// Position in the sum's grid at which a band ends.
std::int64_t end_of_band(const TileGrid& sums, const ShardTiles& tiles, std::int64_t band) {
  if (tiles.band_cols > 0) return sums.positions() / tiles.bands * (band + 1);
  const std::int64_t tall = ceil_div((band + 1) * tiles.band_rows, sums.tile_rows);
  return smaller(tall, sums.tiles_m()) * sums.tiles_n();
}

std::uint32_t tiles_of_band(const TileGrid& sums, const ShardTiles& tiles, std::int64_t band) {
  const auto before = [&](std::int64_t bands) {
    return bands == 0 ? 0 : sums.tiles_before(end_of_band(sums, tiles, bands - 1));
  };
  return static_cast<std::uint32_t>(before(band + 1) - before(band));
}

/// The sources' regions on a rank.
std::vector<Placement> sources(const FusedBuilder& build, const Reduction& at, int rank, std::int64_t rows) {
  std::vector<Placement> regions;
  for (int source = 0; source < build.problem().world; ++source)
    regions.push_back(Builder::in_place(build.rows(at.staging, rank, source * at.region, rows)));
  return regions;
}

std::uint32_t stored_tiles(const FusedBuilder& build, const ShardTiles& tiles, std::int64_t band) {
  return static_cast<std::uint32_t>(build.problem().world) * tiles.tiles_in(band);
}

/// The pass that sums the sources' regions on a rank, band by band, and stores to `to`.
Elementwise sum_pass(FusedBuilder& build, const ShardTiles& tiles, const Reduction& at, int rank,
                     std::int64_t rows, Placement to) {
  const Problem& p = build.problem();
  Elementwise pass;
  pass.grid = sum_grid(build, tiles, at.region, rows);
  pass.from = sources(build, at, rank, rows);
  pass.to = std::move(to);
  if (!build.row_wise_finishing()) {
    pass.epilogue = p.result_epilogue();
    if (pass.epilogue.bias) pass.bias = build.all(build.bias, rank);
  }
  TileGate gate{at.stored, {}, {}};
  for (std::int64_t band = 0; band < tiles.bands; ++band) {
    gate.ends.push_back(end_of_band(pass.grid, tiles, band));
    gate.targets.push_back(stored_tiles(build, tiles, band));
  }
  pass.gates.push_back(std::move(gate));
  pass.queue = 0;
  return pass;
}

/// Shares a sum between the helpers, except `fillers` of them, and all other workers.
void share_sum(FusedBuilder& build, int rank, Elementwise pass, std::int32_t fillers = 0) {
  const std::int32_t helpers = build.helpers();
  const std::int32_t lane = helpers > 0 ? build.helper_lane(rank, "reduce") : compute_lane;
  share(build, rank, std::move(pass), lane, helpers - fillers, build.workers() - helpers);
}

/// Counts every tile of a pass on `ranks`. Positions [ends[i - 1], ends[i]) add to entry first + i.
TileNotify count_tiles(std::int32_t counter, std::vector<std::int32_t> ranks, std::vector<std::int64_t> ends,
                       std::int64_t first) {
  TileNotify notify{counter, std::move(ranks), std::move(ends)};
  for (std::size_t i = 0; i < notify.ends.size(); ++i)
    notify.entries.push_back(static_cast<std::int32_t>(first) + static_cast<std::int32_t>(i));
  return notify;
}

std::int32_t staging_buffer(FusedBuilder& build, std::int64_t rows) {
  return build.typed_buffer("staging", build.params().stage_fp32 ? DType::f32 : build.problem().dtype, rows,
                            build.problem().n);
}

/// All ranks, from `first` on, so that ranks which store to all do not store to the same one at a time.
std::vector<std::int32_t> everyone(int world, int first) {
  std::vector<std::int32_t> ranks;
  for (int i = 0; i < world; ++i) ranks.push_back((first + i) % world);
  return ranks;
}

}  // namespace

ShardSums::ShardSums(FusedBuilder& build, const ShardTiles& tiles) : build_(build), tiles_(tiles) {
  const Problem& p = build.problem();
  gathers_ = p.op == Op::gemm_allreduce;
  in_epilogue_ = build.params().sums == SumsIn::epilogue;
  shard_ = p.shard_rows();
  staging_ = staging_buffer(build, p.world * shard_);
  stored_ = build.counter("stored", tiles.bands * (in_epilogue_ ? tiles.turns() : 1));
  const bool finishes = build.row_wise_finishing();
  fills_ = gathers_ && build.params().unregistered && !finishes;
  sums_ = finishes || fills_ ? build.buffer("sums", gathers_ ? p.m : shard_, p.n) : build.out;
  // Ranks that must know that a shard is summed. For a scatter this is only the owner, if rows are finished
  // afterwards.
  parts_ = fills_ ? tiles.bands : 1;
  summed_ = gathers_ || finishes ? build.counter("summed", p.world * parts_) : -1;
  // One helper in eight keeps up with the sums of other ranks; more would be missed by a pass that sums.
  if (fills_) fillers_ = in_epilogue_ ? build.helpers() : (build.helpers() + 6) / 8;
}

/// The own shard comes last, because no rank waits for its transfer, unless all ranks use the same order.
int ShardSums::first(int rank) const {
  return build_.params().comm_order == CommOrder::same ? 0 : (rank + 1) % build_.world();
}

void ShardSums::multiply(int rank, const Slice& a) const {
  const int world = build_.world();
  const bool by_shards = tiles_.shards == world;
  const RowMap rows =
      by_shards ? tiles_.rows() : RowMap{world, shard_, shard_, shard_, 0, build_.problem().m};
  Gemm gemm = build_.gemm(rank, tiles_.grid(first(rank)), tiles_.rows(),
                          {build_.rows(staging_, rank, rank * shard_, shard_), placement::Owners{rows}});
  gemm.a = a;
  gemm.notify.push_back(by_shards ? stored_by_shards(rank)
                                  : TileNotify{stored_, everyone(world, rank), tiles_.ends()});
  if (in_epilogue_) sum_in_epilogue(rank, gemm);
  gemm.resources = {1, build_.workers() - build_.helpers()};
  build_.step(rank, compute_lane, std::move(gemm));
}

TileNotify ShardSums::stored_by_shards(int rank) const {
  TileNotify notify{stored_, {}, tiles_.ends()};
  for (const ShardTiles::Run& run : tiles_.runs()) {
    notify.entries.push_back(stored_entry(run));
    notify.owners.push_back((first(rank) + run.place) % build_.world());
  }
  return notify;
}

std::int32_t ShardSums::stored_entry(const ShardTiles::Run& run) const {
  return static_cast<std::int32_t>(in_epilogue_ ? run.band * tiles_.turns() + run.turn : run.band);
}

void ShardSums::sum_in_epilogue(int rank, Gemm& gemm) const {
  const int world = build_.world();
  const std::int64_t rows = rows_of(rank);
  RowMap of_shard = tiles_.rows();  // virtual rows of the own shard → its rows
  of_shard.stride = 0, of_shard.limit = rows;
  for (int source = 0; source < world; ++source)
    if (source != rank)
      gemm.sums.from.push_back(
          {build_.rows(staging_, rank, source * shard_, rows), placement::Matrix{of_shard}});
  std::vector<std::int32_t> told{rank};  // ranks that learn of the sums
  if (gathers_) told = everyone(world, rank);
  if (fills_) std::erase(told, rank);
  const std::int64_t first_row = gathers_ ? smaller(rank * shard_, build_.problem().m) : 0;
  if (fills_)
    gemm.sums.to.push_back({build_.rows(build_.out, rank, first_row, rows), placement::Matrix{of_shard}});
  gemm.sums.to.push_back({build_.rows(sums_, rank, first_row, rows),
                          placement::Matrix{of_shard, gathers_ ? told : std::vector<std::int32_t>{}}});
  if (!build_.row_wise_finishing()) {
    gemm.epilogue = build_.problem().result_epilogue();
    if (gemm.epilogue.bias) gemm.bias = build_.all(build_.bias, rank);
  }
  TileGate parts{stored_, tiles_.ends(), {}, {}, true};
  TileNotify summed{summed_, std::move(told), tiles_.ends()};
  TileNotify& stored = gemm.notify.front();
  std::size_t group = 0;
  for (const ShardTiles::Run& run : tiles_.runs()) {
    const bool own = (first(rank) + run.place) % world == rank;
    const auto others = static_cast<std::uint32_t>(world - 1);
    parts.entries.push_back(stored_entry(run));
    parts.targets.push_back(own ? others * tiles_.tiles_in(run.band, run.turn) : 0);
    if (own) stored.entries[group] = -1;
    summed.entries.push_back(own ? static_cast<std::int32_t>(rank * parts_ + (parts_ > 1 ? run.band : 0))
                                 : -1);
    ++group;
  }
  gemm.gates.push_back(std::move(parts));
  if (summed_ >= 0) gemm.notify.push_back(std::move(summed));
}

TileGrid ShardSums::sums_of(int rank) const {
  return sum_grid(build_, tiles_, shard_, rows_of(rank));
}

std::uint32_t ShardSums::tiles_of_sums(int rank, std::int64_t band) const {
  return in_epilogue_ ? tiles_.tiles_in(band) : tiles_of_band(sums_of(rank), tiles_, band);
}

std::uint32_t ShardSums::tiles_of_sums(int rank) const {
  return static_cast<std::uint32_t>(in_epilogue_ ? tiles_.inner.tiles() : sums_of(rank).tiles());
}

void ShardSums::sum(int rank) const {
  if (!in_epilogue_) sum_in_pass(rank);
  if (fills_) return fill(rank);
  if (summed_ < 0) return;
  for (int s = 0; s < build_.world(); ++s)
    if ((gathers_ || s == rank) && tiles_of_sums(s) > 0)
      build_.await(rank, compute_lane, summed_, s, tiles_of_sums(s));
  if (build_.row_wise_finishing()) finish_rows(build_, rank, sums_, build_.problem().out_rows(rank));
}

void ShardSums::sum_in_pass(int rank) const {
  const Problem& p = build_.problem();
  const std::int64_t rows = rows_of(rank);
  placement::Matrix form{RowMap::identity(rows)};
  if (gathers_) form.ranks = everyone(p.world, rank);
  Placement to{build_.rows(sums_, rank, gathers_ ? smaller(rank * shard_, p.m) : 0, rows), std::move(form)};
  Elementwise pass = sum_pass(build_, tiles_, {staging_, shard_, stored_}, rank, rows, std::move(to));
  const std::vector<std::int64_t> ends =
      fills_ ? pass.gates.front().ends : std::vector{pass.grid.positions()};
  if (summed_ >= 0)
    pass.notify.push_back(count_tiles(
        summed_, gathers_ ? everyone(p.world, rank) : std::vector<std::int32_t>{rank}, ends, rank * parts_));
  share_sum(build_, rank, std::move(pass), fillers_);
}

/// Copies sums from internal memory to the output. A tile is copied when the band of its rows' owner is
/// complete. A few helpers start as soon as a band is complete, and all workers help in the end. After sums
/// in the epilogue only the other ranks' rows are left. These come band by band from all ranks at a time.
void ShardSums::fill(int rank) const {
  const int world = build_.world();
  ShardTiles tiles = tiles_;
  if (in_epilogue_) tiles.shards -= 1, tiles.stretch = 1;
  RowMap rows = tiles.rows();
  if (in_epilogue_) rows.without = rank;
  int begin = first(rank);
  if (in_epilogue_ && begin > rank) --begin;
  const auto owner_of = [&](const ShardTiles::Run& run) {
    const int shard = (begin + run.place) % tiles.shards;
    return in_epilogue_ && shard >= rank ? shard + 1 : shard;
  };
  Elementwise pass;
  pass.grid = tiles.grid(begin);
  pass.from.push_back({build_.all(sums_, rank), placement::Matrix{rows}});
  pass.to = {build_.all(build_.out, rank), placement::Matrix{rows}};
  const auto await = [&](TileGate& gate, int owner, std::int64_t band) {
    gate.entries.push_back(static_cast<std::int32_t>(owner * parts_ + band));
    gate.targets.push_back(tiles_of_sums(owner, band));
  };
  if (in_epilogue_ || tiles.shards == world) {
    TileGate gate{summed_, tiles.ends(), {}};
    for (const ShardTiles::Run& run : tiles.runs()) await(gate, owner_of(run), run.band);
    pass.gates.push_back(std::move(gate));
  } else {  // a tile has rows of all owners
    for (int owner = 0; owner < world; ++owner) {
      TileGate gate{summed_, tiles.ends(), {}};
      for (const ShardTiles::Run& run : tiles.runs()) await(gate, owner, run.band);
      pass.gates.push_back(std::move(gate));
    }
  }
  pass.queue = 1;
  const std::int32_t lane = fillers_ > 0 ? build_.lane(rank, LaneKind::compute, "fill") : compute_lane;
  share(build_, rank, std::move(pass), lane, fillers_, build_.workers() - build_.helpers());
}

namespace {

/// The pass over complete rows that sums the sources' regions, too. It begins when all bands are stored.
void sum_and_finish(FusedBuilder& build, const ShardTiles& tiles, const Reduction& at, int rank) {
  for (std::int64_t band = 0; band < tiles.bands; ++band)
    build.await(rank, compute_lane, at.stored, band, stored_tiles(build, tiles, band));
  const std::int64_t rows = build.problem().m;
  finish_rows(build, rank, sources(build, at, rank, rows), rows);
}

/// Every rank sends its product to all ranks and sums all rows: more bytes, but one hop fewer.
///
/// A norm needs a pass over complete rows. Helpers sum beside the product, for that pass to read. Without
/// helpers, the pass itself sums.
void in_one_shot(FusedBuilder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const ShardTiles tiles(1, p.m, p.n, machine, build.params(), ShardTiles::Bands::of_any);
  const Reduction at{staging_buffer(build, p.world * p.m), p.m, build.counter("stored", tiles.bands)};
  const bool finishes = build.row_wise_finishing();
  const bool at_once = finishes && build.helpers() == 0;  // in one pass
  const bool apart = finishes && !at_once;
  const std::int32_t sums = apart ? build.buffer("sums", p.m, p.n) : build.out;
  const std::int32_t summed = apart ? build.counter("summed", 1) : -1;
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    handshake.await_all(build, r, compute_lane);
    Placement store{build.rows(at.staging, r, r * p.m, p.m),
                    placement::Matrix{tiles.rows(), everyone(p.world, r)}};
    Gemm gemm = build.gemm(r, tiles.grid(0), tiles.rows(), std::move(store));
    TileNotify notify{at.stored, everyone(p.world, r), tiles.ends()};
    gemm.notify.push_back(std::move(notify));
    gemm.resources = {1, build.workers() - build.helpers()};
    build.step(r, compute_lane, std::move(gemm));
    if (at_once) {
      sum_and_finish(build, tiles, at, r);
      continue;
    }
    Elementwise pass = sum_pass(build, tiles, at, r, p.m, Builder::in_place(build.rows(sums, r, 0, p.m)));
    if (apart) pass.notify.push_back(count_tiles(summed, {r}, {pass.grid.positions()}, 0));
    const TileGrid grid = pass.grid;
    share_sum(build, r, std::move(pass));
    if (!apart) continue;
    build.await(r, compute_lane, summed, 0, static_cast<std::uint32_t>(grid.tiles()));
    finish_rows(build, r, sums, p.m);
  }
}

}  // namespace

void fuse_reduction(FusedBuilder& build, const Machine& machine, bool ends_with_own) {
  if (build.params().one_shot) {
    in_one_shot(build, machine);
  } else {
    const Problem& p = build.problem();
    constexpr auto bands = ShardTiles::Bands::of_any;
    const auto together = ShardTiles::together(p, p.n, machine, build.params(), bands);
    ShardTiles tiles = together ? *together : ShardTiles(p.world, p.m, p.n, machine, build.params(), bands);
    if (ends_with_own) tiles.stretch_to(build.workers() - build.helpers());
    const ShardSums sums(build, tiles);
    const bool attends = p.traits().attends;
    const std::int32_t attended = attends ? build.buffer("attended", p.m, p.k) : -1;
    const Handshake handshake(build);
    for (int r = 0; r < build.world(); ++r) {
      const Slice a = build.all(attends ? attended : build.a, r);
      if (attends) build.step(r, compute_lane, build.attend(r, 0, p.m, a));
      handshake.await_all(build, r, compute_lane);
      sums.multiply(r, a);
      sums.sum(r);
    }
  }
}

}  // namespace shingle::planner
