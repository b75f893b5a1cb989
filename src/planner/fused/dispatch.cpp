// alltoall+gemm with gates by source rank: the dispatch of a mixture of experts.
//
// Rows are pushed to one destination after the other, the own rank first. The GEMM begins with the own rows
// and takes those of other ranks in order of arrival. A tile may need rows of several ranks, and awaits each.
#include "fused.hpp"
#include "planner/common/pools.hpp"
#include "planner/common/routed_rows.hpp"

namespace shingle::planner {
namespace {

/// Tiles over a rank's received rows, own rows first.
struct ReceivedTiles {
  TileGrid grid;
  std::int64_t band_rows;  ///< rows that a band of positions covers
  std::int64_t band_positions;

  ReceivedTiles(const FusedBuilder& build, const Machine& machine, int rank, std::int64_t rows) {
    const FusedParams& params = build.params();
    const std::int64_t cols = build.product_cols();
    const auto [tall, wide] = tile_size(machine, params.tile).within(rows, cols);
    TileOrder order = params.tile.order;
    const std::int64_t tiles = std::int64_t{order.swizzle} * order.cluster_m;
    const bool along_n = order.raster == Raster::along_n;
    band_rows = along_n ? tiles * tall : larger(rows, 1);
    // In column order, every column needs all rows, so an order by arrival has no effect.
    order.rotation =
        along_n ? static_cast<std::int32_t>(build.problem().routing->receive_base(rank, rank) / band_rows)
                : 0;
    grid = make_grid(rows, cols, tall, wide, order);
    band_positions = along_n ? grid.positions() / larger(ceil_div(rows, band_rows), 1) : grid.positions();
  }
  /// First row of the band at a position.
  std::int64_t first_row(std::int64_t position) const {
    return grid.tile(position).m * grid.tile_rows / band_rows * band_rows;
  }
};

/// The gate on one source: bands that hold its rows await all that it pushes.
TileGate gate_on(const ReceivedTiles& tiles, std::int32_t arrived, int source, std::int64_t base,
                 std::int64_t rows, std::uint32_t pushed) {
  TileGate gate{arrived, {}, {}};
  for (std::int64_t position = 0; position < tiles.grid.positions(); position += tiles.band_positions) {
    const std::int64_t first = tiles.first_row(position);
    const bool needed = rows > 0 && first < base + rows && base < first + tiles.band_rows;
    const std::uint32_t target = needed ? pushed : 0;
    const std::int64_t end = position + tiles.band_positions;
    if (!gate.targets.empty() && gate.targets.back() == target) {
      gate.ends.back() = end;
      continue;
    }
    gate.ends.push_back(end);
    gate.targets.push_back(target);
    gate.entries.push_back(source);
  }
  return gate;
}

}  // namespace

void fuse_dispatch(FusedBuilder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const Routing& routing = *p.routing;
  const std::int32_t helpers = build.helpers();
  const std::vector<std::int64_t> received = RoutedRows(routing).received;
  const std::int32_t gathered = build.buffer("gathered", received, p.k);
  const std::int32_t product =
      build.needs_finishing() ? build.buffer("product", received, build.product_cols()) : build.out;
  const std::int32_t arrived = build.counter("arrived", p.world);
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    const std::int32_t lane = helpers > 0 ? build.lane(r, LaneKind::compute, "push") : compute_lane;
    for (int i = 0; i < p.world; ++i) {
      const int dest = (r - i + p.world) % p.world;
      if (routing.count(r, dest) == 0) continue;
      if (dest != r) handshake.await(build, r, lane, dest);
      Elementwise push;
      push.grid = build.row_blocks(routing.rows(r), p.k);
      push.from.push_back(Builder::in_place(build.all(build.a, r)));
      push.to = routed_rows(routing, r, dest, build.all(gathered, dest));
      push.notify.push_back({arrived, {dest}, {push.grid.positions()}, {r}});
      push.resources = {1, helpers > 0 ? helpers : build.workers()};
      build.step(r, lane, std::move(push));
    }
    const ReceivedTiles tiles(build, machine, r, received[r]);
    Gemm gemm =
        build.gemm(r, tiles.grid, RowMap::identity(received[r]), Builder::in_place(build.all(product, r)));
    gemm.a = build.all(gathered, r);
    for (int i = 0; i < p.world && received[r] > 0; ++i) {
      const int source = (r + i) % p.world;
      const auto pushed = static_cast<std::uint32_t>(build.row_blocks(routing.rows(source), p.k).tiles());
      gemm.gates.push_back(
          gate_on(tiles, arrived, source, routing.receive_base(r, source), routing.count(source, r), pushed));
    }
    gemm.resources = {1, build.workers() - helpers};
    build.step(r, compute_lane, std::move(gemm));
    finish_rows(build, r, product, received[r]);
  }
}

}  // namespace shingle::planner
