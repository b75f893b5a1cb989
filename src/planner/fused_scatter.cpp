// gemm+alltoall whose tiles store every row where the routing wants it: no packing, no collective, no
// restore. Where that is the operator's memory, rows go on from there once their source has sent them all.
#include "fused.hpp"

namespace shingle::planner {

void fuse_scatter(Builder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const Routing& routing = *p.routing;
  const bool finishing = build.needs_finishing();
  const bool fills = build.params().unregistered && !finishing;
  std::vector<std::int64_t> received;
  std::vector<std::int32_t> everyone;
  for (int r = 0; r < p.world; ++r) {
    received.push_back(routing.received(r));
    everyone.push_back(r);
  }
  const std::int32_t target =
      finishing || fills ? build.buffer("received", received, build.product_cols()) : build.out;
  const std::int32_t stored = build.counter("stored", p.world);
  const Handshake handshake(build);
  const auto grid_of = [&](int rank) {
    const std::int64_t rows = routing.rows(rank), cols = build.product_cols();
    const TileSize tile = tile_size(machine, build.params()).within(rows, cols);
    return make_grid(rows, cols, tile.rows, tile.cols, build.params().order);
  };
  for (int r = 0; r < p.world; ++r) {
    handshake.await_all(build, r, compute_lane);
    Placement store;
    store.kind = PlacementKind::routed;
    store.slice = build.all(target, r);
    store.source = r;
    for (int dest = 0; dest < p.world; ++dest) store.bases.push_back(routing.receive_base(dest, r));
    const TileGrid grid = grid_of(r);
    Gemm gemm = build.gemm(r, grid, RowMap::identity(grid.rows), std::move(store));
    gemm.notify.push_back({stored, everyone, {grid.positions()}, {r}});
    gemm.resources = {1, build.workers()};
    build.step(r, compute_lane, std::move(gemm));
    for (int s = 0; s < p.world; ++s) {
      if (const auto tiles = static_cast<std::uint32_t>(grid_of(s).tiles()); tiles > 0)
        build.await(r, compute_lane, stored, s, tiles);
      const std::int64_t base = routing.receive_base(r, s), rows = routing.count(s, r);
      if (fills) copy_rows(build, r, build.rows(target, r, base, rows), build.rows(build.out, r, base, rows));
    }
    if (finishing)
      build.step(r, compute_lane,
                 build.finishing(r, build.row_blocks(received[r], build.product_cols()),
                                 Builder::in_place(build.all(target, r)),
                                 Builder::in_place(build.all(build.out, r))));
  }
}

}  // namespace shingle::planner
