#include "shard_tiles.hpp"

namespace shingle::planner {
namespace {

constexpr std::int64_t most_bands = 8;  // bands or pieces

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  std::int64_t divisor = smaller(of, most);
  while (of % divisor != 0) --divisor;
  return divisor;
}

/// Tile order within a shard: from the params, else from the machine. An order from the machine is reduced so
/// that it leaves no phantom rows of tiles, which would be computed for nothing.
///
/// For bands of rows, an order along m is turned, with its width as height. A walk along single rows of tiles
/// would read all of B for each row.
TileOrder order_of(std::int64_t tiles_m, const Machine& machine, const FusedParams& params,
                   ShardTiles::Bands bands) {
  TileOrder order = params.tile.order;
  if (order == TileOrder{}) {
    order = machine.order;
    if (tiles_m % order.cluster_m != 0) order.cluster_m = 1;
    if (bands == ShardTiles::Bands::of_rows && order.raster == Raster::along_m) {
      order.raster = Raster::along_n;
      order.swizzle = larger(order.swizzle * order.cluster_n / order.cluster_m, 1);
    }
    if (order.raster == Raster::along_n)
      order.swizzle = static_cast<std::int32_t>(largest_divisor(tiles_m / order.cluster_m, order.swizzle));
  }
  order.rotation = 0;
  return order;
}

/// Cuts the outermost loop along an axis into `outer` turns of `inner`. The turns become loop `at` of the
/// nest.
void take_out(TileGrid& grid, Axis axis, std::int64_t outer, std::int64_t inner, int at) {
  if (outer == 1) return;
  int from = at;
  while (grid.loops[from].axis != axis) ++from;
  grid.loops[from].extent = static_cast<std::int32_t>(inner);
  if (inner > 1) from = grid.loop_count++;
  for (int i = from; i > at; --i) grid.loops[i] = grid.loops[i - 1];
  grid.loops[at] = {axis, static_cast<std::int32_t>(outer)};
}

/// Number of pieces in which the rows of a shard take turns with other shards. A shard has `turns` turns of
/// the nest. The pieces are small enough that a wave has tiles of all shards, within the limit on pieces.
std::int64_t pieces_of(std::int64_t turns, std::int64_t tiles_of_turn, int shards, std::int64_t workers) {
  std::int64_t pieces = 1;
  for (std::int64_t count = 1; count <= smaller(turns, most_bands); ++count) {
    if (turns % count != 0) continue;
    pieces = count;
    if (turns / count * tiles_of_turn * shards <= workers) break;
  }
  return pieces;
}

}  // namespace

ShardTiles::ShardTiles(int count, std::int64_t rows, std::int64_t cols, const Machine& machine,
                       const FusedParams& params, Bands of)
    : shards(count), shard(ceil_div(rows, count)), limit(rows) {
  const TileSize size = tile_size(machine, params.tile);
  const std::int64_t wanted = smaller(size.rows, shard);
  // As tall as wanted, or a little less if that reduces padding.
  const auto tile_rows = static_cast<std::int32_t>(ceil_div(shard, ceil_div(shard, wanted)));
  const auto tile_cols = static_cast<std::int32_t>(smaller(size.cols, cols));
  const TileOrder order = order_of(ceil_div(shard, tile_rows), machine, params, of);
  const std::int64_t tall = std::int64_t{order.swizzle} * order.cluster_m;
  const bool along_n = order.raster == Raster::along_n;
  const std::int64_t unit =
      along_n ? tall : order.cluster_m;  // a multiple of it leaves no phantom rows of tiles
  const std::int64_t tiles_m = ceil_div(ceil_div(shard, tile_rows), unit) * unit;
  inner = make_grid(tiles_m * tile_rows, cols, tile_rows, tile_cols, order);
  const bool takes_turns = of == Bands::of_any && params.comm_order == CommOrder::interleaved && count > 1;
  band_rows = tiles_m * tile_rows;
  if (!along_n && of == Bands::of_any) {
    const std::int64_t wide = std::int64_t{order.swizzle} * order.cluster_n;
    const std::int64_t finest = ceil_div(inner.tiles_n(), wide), joined = ceil_div(finest, most_bands);
    bands = ceil_div(finest, joined);
    band_cols = joined * wide * tile_cols;
    const std::int64_t turns = tiles_m / order.cluster_m;
    if (takes_turns) pieces = pieces_of(turns, order.cluster_m * joined * wide, count, machine.workers);
    take_out(inner, Axis::n, bands, joined, 0);
    take_out(inner, Axis::m, pieces, turns / pieces, bands > 1 ? 1 : 0);
  } else if (along_n) {
    const std::int64_t finest = tiles_m / tall;
    if (takes_turns) pieces = pieces_of(finest, tall * inner.tiles_n(), count, machine.workers);
    const std::int64_t joined = pieces > 1 ? finest / pieces : ceil_div(finest, most_bands);
    bands = ceil_div(finest, joined);
    band_rows = joined * tall * tile_rows;
    band_positions = inner.positions() / finest * joined;
    take_out(inner, Axis::m, pieces, joined, 0);
  }
  if (band_positions == 0) band_positions = inner.positions() / bands;
  if (params.sums == SumsIn::epilogue) stretch_to(inner.positions());
}

void ShardTiles::stretch_to(std::int64_t tiles) {
  if (band_cols == 0 || pieces > 1) return;
  while (stretch < bands && (bands % stretch != 0 || stretch * band_positions < tiles)) ++stretch;
}

std::optional<ShardTiles> ShardTiles::together(const Problem& problem, std::int64_t cols,
                                               const Machine& machine, const FusedParams& params, Bands of) {
  const std::int64_t most = tile_size(machine, params.tile).rows;
  if (problem.world == 1 || problem.m > most || problem.m % problem.world != 0) return std::nullopt;
  const ShardTiles tiles(1, problem.m, cols, machine, params, of);
  if (tiles.inner.rows != problem.m) return std::nullopt;  // the order has phantom rows of tiles
  return tiles;
}

TileGrid ShardTiles::grid(int first, bool descending) const {
  if (shards == 1) return inner;
  TileGrid all = inner;
  all.rows = shards * inner.rows;
  const bool stretches = band_cols > 0 && bands > stretch;
  if (stretches) take_out(all, Axis::n, bands / stretch, stretch, 0);
  const int outer = (stretches ? 1 : 0) + (pieces > 1 ? 1 : 0);  // loops outside of the loop over shards
  for (int i = all.loop_count++; i > outer; --i) all.loops[i] = all.loops[i - 1];
  all.loops[outer] = {Axis::m, shards, first, descending};
  return all;
}

RowMap ShardTiles::rows() const {
  const std::int64_t piece = inner.rows / pieces;
  return {shards, smaller(piece, shard), shard, shard, 0, limit, piece};
}

std::int64_t ShardTiles::rows_of(int index) const {
  return larger(smaller(limit - index * shard, shard), 0);
}

std::vector<ShardTiles::Run> ShardTiles::runs() const {
  std::vector<Run> runs;
  const auto add = [&](int place, std::int64_t band, std::int64_t turn, std::int64_t positions) {
    runs.push_back({place, band, turn, (runs.empty() ? 0 : runs.back().end) + positions});
  };
  if (band_cols > 0 || pieces > 1) {
    for (std::int64_t begin = 0; begin < bands; begin += stretch)
      for (std::int64_t turn = 0; turn < turns(); ++turn)
        for (int place = 0; place < shards; ++place)
          for (std::int64_t band = begin; band < begin + stretch; ++band)
            add(place, band, turn, band_positions / turns());
  } else {
    for (int place = 0; place < shards; ++place)
      for (std::int64_t band = 0; band < bands; ++band)
        add(place, band, 0, smaller(band_positions, inner.positions() - band * band_positions));
  }
  return runs;
}

std::vector<std::int64_t> ShardTiles::ends() const {
  std::vector<std::int64_t> ends;
  for (const Run& run : runs()) ends.push_back(run.end);
  return ends;
}

std::uint32_t ShardTiles::tiles_in(std::int64_t band) const {
  std::uint32_t tiles = 0;
  for (std::int64_t turn = 0; turn < turns(); ++turn) tiles += tiles_in(band, turn);
  return tiles;
}

std::uint32_t ShardTiles::tiles_in(std::int64_t band, std::int64_t turn) const {
  const std::int64_t of_turn = band_positions / turns(), first = band * band_positions + turn * of_turn;
  return static_cast<std::uint32_t>(inner.tiles_before(smaller(first + of_turn, inner.positions())) -
                                    inner.tiles_before(first));
}

}  // namespace shingle::planner
