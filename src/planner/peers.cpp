#include "peers.hpp"

namespace shingle::planner {

Handshake::Handshake(Builder& build) : begun_(build.counter("begun", build.world())) {
  for (int r = 0; r < build.world(); ++r)
    for (int i = 1; i < build.world(); ++i)
      build.notify_peer(r, compute_lane, begun_, (r + i) % build.world(), r);
}

void Handshake::await(Builder& build, int rank, std::int32_t lane, int peer) const {
  build.await(rank, lane, begun_, peer);
}

void Handshake::await_all(Builder& build, int rank, std::int32_t lane) const {
  for (int i = 1; i < build.world(); ++i) await(build, rank, lane, (rank + i) % build.world());
}

ShardTiles::ShardTiles(int count, std::int64_t rows, std::int64_t cols, const Machine& machine,
                       const Params& params)
    : shards(count), shard(ceil_div(rows, count)), limit(rows) {
  constexpr std::int64_t most_bands = 8;
  const std::int64_t wanted = smaller(params.tile_rows > 0 ? params.tile_rows : machine.tile_rows, shard);
  // As tall as wanted, or a little less where that leaves less padding.
  const auto tile_rows = static_cast<std::int32_t>(ceil_div(shard, ceil_div(shard, wanted)));
  const auto tile_cols =
      static_cast<std::int32_t>(smaller(params.tile_cols > 0 ? params.tile_cols : machine.tile_cols, cols));
  TileOrder order = params.order;
  order.rotation = 0;
  const std::int64_t tall = std::int64_t{order.swizzle} * order.cluster_m;
  const bool along_n = order.raster == Raster::along_n;
  const std::int64_t unit =
      along_n ? tall : order.cluster_m;  // a multiple of which leaves no phantom rows of tiles
  const std::int64_t tiles_m = ceil_div(ceil_div(shard, tile_rows), unit) * unit;
  inner = make_grid(tiles_m * tile_rows, cols, tile_rows, tile_cols, order);
  const std::int64_t finest =
      along_n ? tiles_m / tall : 1;  // one column of tiles after the other: no rows early
  const std::int64_t joined = ceil_div(finest, most_bands);
  bands = ceil_div(finest, joined);
  band_rows = tiles_m / finest * joined * tile_rows;
  band_positions = inner.positions() / finest * joined;
}

TileGrid ShardTiles::grid(int first, bool descending) const {
  if (shards == 1) return inner;
  TileGrid all = inner;
  all.rows = shards * inner.rows;
  all.loop_count = inner.loop_count + 1;
  all.loops[0] = {Axis::m, shards, first, descending};
  for (int i = 0; i < inner.loop_count; ++i) all.loops[i + 1] = inner.loops[i];
  return all;
}

RowMap ShardTiles::rows() const {
  return {shards, shard, shard, shard, 0, limit, inner.rows};
}

std::int64_t ShardTiles::rows_of(int index) const {
  return larger(smaller(limit - index * shard, shard), 0);
}

std::vector<std::int64_t> ShardTiles::ends() const {
  std::vector<std::int64_t> ends;
  for (int s = 0; s < shards; ++s)
    for (std::int64_t band = 1; band <= bands; ++band)
      ends.push_back(s * inner.positions() + smaller(band * band_positions, inner.positions()));
  return ends;
}

std::uint32_t ShardTiles::tiles_in(std::int64_t band) const {
  const std::int64_t first = band * band_positions;
  return static_cast<std::uint32_t>(inner.tiles_before(smaller(first + band_positions, inner.positions())) -
                                    inner.tiles_before(first));
}

}  // namespace shingle::planner
