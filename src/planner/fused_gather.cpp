// allgather+gemm whose tiles wait for the rows that they need (FLUX §3.2, Algorithms 2 and 3).
//
// Shards travel in communication tiles of some bands each; the GEMM runs over the shards in the order in
// which they come, the own one first, and a tile awaits the communication tile that holds its rows. At any
// step the transfers form a permutation: nobody sends to, or fetches from, whom another does.
#include "fused.hpp"

namespace shingle::planner {
namespace {

/// A shard in transit.
struct Transit {
  const ShardTiles& tiles;
  std::int64_t comm_rows;  ///< of a communication tile: whole bands
  std::int64_t pieces;     ///< of a full shard
  std::int32_t arrived;    ///< entry source · pieces + piece

  std::int64_t first(std::int64_t piece) const { return piece * comm_rows; }
  std::int64_t rows(int shard, std::int64_t piece) const {
    return larger(smaller(tiles.rows_of(shard) - first(piece), comm_rows), 0);
  }
  std::int32_t entry(int source, std::int64_t piece) const {
    return static_cast<std::int32_t>(source * pieces + piece);
  }
};

/// One piece from `source`'s A to the gathered matrix of `dest`, and the word that it is there.
void move_piece(Builder& build, const Transit& transit, std::int32_t gathered, int rank, std::int32_t lane,
                int source, int dest, std::int64_t piece) {
  const std::int64_t rows = transit.rows(source, piece), first = transit.first(piece);
  if (rows == 0) return;
  build.step(rank, lane,
             Copy{build.rows(build.a, source, first, rows),
                  build.rows(gathered, dest, source * transit.tiles.shard + first, rows)});
  build.step(rank, lane, Notify{{transit.arrived, dest, transit.entry(source, piece)}, 1});
}

void move_by_engine(Builder& build, const Transit& transit, const Handshake& handshake, std::int32_t gathered,
                    std::int32_t fetched, int rank) {
  const int world = build.world();
  const std::int32_t lane = build.lane(rank, LaneKind::copy, "copy");
  for (std::int64_t piece = 0; piece < transit.pieces; ++piece)
    move_piece(build, transit, gathered, rank, lane, rank, rank, piece);
  for (int i = 1; i < world; ++i) {
    const bool pull = build.params().pull;
    const int peer = pull ? (rank + i) % world : (rank - i + world) % world;
    handshake.await(build, rank, lane, peer);
    for (std::int64_t piece = 0; piece < transit.pieces; ++piece)
      move_piece(build, transit, gathered, rank, lane, pull ? peer : rank, pull ? rank : peer, piece);
    if (pull) build.step(rank, lane, Notify{{fetched, peer, rank}, 1});
  }
}

/// Workers push, or fetch, the same pieces: helpers beside the GEMM if there are any, else all before it,
/// which their stores then overlap.
void move_by_workers(Builder& build, const Transit& transit, const Handshake& handshake,
                     std::int32_t gathered, std::int32_t fetched, int rank) {
  const int world = build.world();
  const std::int32_t helpers = build.params().helpers;
  const std::int32_t lane = helpers > 0 ? build.lane(rank, LaneKind::compute, "push") : compute_lane;
  for (int i = 0; i < world; ++i) {
    const bool pull = build.params().pull;
    const int peer = pull ? (rank + i) % world : (rank - i + world) % world;
    const int source = pull ? peer : rank, dest = pull ? rank : peer;
    if (peer != rank) handshake.await(build, rank, lane, peer);
    const std::int64_t rows = transit.tiles.rows_of(source);
    Elementwise pass;
    pass.grid = make_grid(rows, build.problem().k, static_cast<std::int32_t>(transit.comm_rows),
                          static_cast<std::int32_t>(build.problem().k));
    pass.from.push_back(Builder::in_place(build.rows(build.a, source, 0, rows)));
    pass.to = Builder::in_place(build.rows(gathered, dest, source * transit.tiles.shard, rows));
    TileNotify notify{transit.arrived, {dest}, {}};
    for (std::int64_t piece = 0; piece < pass.grid.positions(); ++piece) {
      notify.ends.push_back(piece + 1);
      notify.entries.push_back(transit.entry(source, piece));
    }
    if (rows > 0) pass.notify.push_back(std::move(notify));
    pass.resources = {1, helpers > 0 ? helpers : build.workers()};
    if (rows > 0) build.step(rank, lane, std::move(pass));
    if (pull && peer != rank) build.step(rank, lane, Notify{{fetched, peer, rank}, 1});
  }
}

}  // namespace

void fuse_gather(Builder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const ShardTiles tiles(p.world, p.m, build.product_cols(), machine, build.params());
  const bool by_engine = build.params().mover == Mover::copy_engine;
  const CounterKind kind = by_engine ? CounterKind::set : CounterKind::add;
  const std::int64_t comm_rows =
      smaller(ceil_div(build.params().comm_rows, tiles.band_rows), tiles.bands) * tiles.band_rows;
  const std::int64_t pieces = ceil_div(tiles.shard, comm_rows);
  const Transit transit{tiles, comm_rows, pieces, build.counter("arrived", p.world * pieces, kind)};
  const std::int32_t fetched = build.params().pull ? build.counter("fetched", p.world, kind) : -1;
  const std::int32_t gathered = build.buffer("gathered", p.world * tiles.shard, p.k);
  const std::int32_t product =
      build.needs_finishing() ? build.buffer("product", p.m, build.product_cols()) : build.out;
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    (by_engine ? move_by_engine : move_by_workers)(build, transit, handshake, gathered, fetched, r);
    Placement store = Builder::in_place(build.all(product, r));
    store.rows = tiles.rows();
    Gemm gemm = build.gemm(r, tiles.grid(r), tiles.rows(), std::move(store));
    gemm.a = build.all(gathered, r);
    TileGate gate{transit.arrived, tiles.ends(), {}};
    for (int i = 0; i < p.world; ++i)
      for (std::int64_t band = 0; band < tiles.bands; ++band) {
        const int source = (r + i) % p.world;
        const std::int64_t piece = smaller(band * tiles.band_rows / comm_rows, pieces - 1);
        gate.entries.push_back(transit.entry(source, piece));
        gate.targets.push_back(transit.rows(source, piece) > 0 ? 1 : 0);
      }
    gemm.gates.push_back(std::move(gate));
    gemm.resources = {1, build.workers() - (by_engine ? 0 : build.params().helpers)};
    build.step(r, compute_lane, std::move(gemm));
    if (build.needs_finishing())
      build.step(r, compute_lane,
                 build.finishing(r, build.row_blocks(p.m, build.product_cols()),
                                 Builder::in_place(build.all(product, r)),
                                 Builder::in_place(build.all(build.out, r))));
    // The own shard is the user's again once everybody has fetched it.
    for (int i = 1; build.params().pull && i < p.world; ++i)
      build.await(r, compute_lane, fetched, (r + i) % p.world);
  }
}

}  // namespace shingle::planner
