// allgather+gemm with gates by tile (FLUX §3.2, Algorithms 2 and 3).
//
// Shards travel in communication tiles of several bands. The GEMM takes them in order of arrival, own rows
// first, or all rows in their order if blocks of rows are dealt to the ranks. A tile awaits the communication
// tiles that hold its rows. At any time the transfers form a permutation: no two ranks send to, or fetch
// from, the same rank.
#include "gather.hpp"

#include <optional>

namespace shingle::planner {

Gather::Gather(FusedBuilder& build, const ShardTiles& tiles, const Machine& machine)
    : build_(build),
      tiles_(tiles),
      comm_rows_(smaller(ceil_div(build.params().comm_rows, tiles.band_rows), tiles.bands) * tiles.band_rows),
      pieces_(ceil_div(tiles.shard, comm_rows_)) {
  const CounterKind kind = by_engine() ? CounterKind::set : CounterKind::add;
  Machine same = machine;
  same.tile_rows = tiles.inner.tile_rows, same.tile_cols = tiles.inner.tile_cols;
  piece_ = ShardTiles(1, comm_rows_, tiles.inner.cols, same, build.params()).inner;
  arrived_ = build.counter("arrived", build.world() * pieces_, kind);
  // If ranks are summed afterwards, a rank that gets the products of its shard knows that the shard was
  // fetched.
  const bool tells = build.params().pull && !build.problem().traits().reduces();
  fetched_ = tells ? build.counter("fetched", build.world(), kind) : -1;
  gathered_ = build.buffer("gathered", build.world() * tiles.shard, build.problem().k);
}

bool Gather::interleaved() const {
  return build_.params().comm_order == CommOrder::interleaved && pieces_ > 1;
}

int Gather::source(int rank, int i) const {
  const int world = build_.world();
  return (build_.params().comm_order == CommOrder::reverse ? rank - i + world : rank + i) % world;
}

int Gather::dest(int rank, int i) const {
  const int world = build_.world();
  return (build_.params().comm_order == CommOrder::reverse ? rank + i : rank - i + world) % world;
}

std::int64_t Gather::rows(int shard, std::int64_t piece) const {
  return larger(smaller(build_.problem().a_rows(shard) - first(piece), comm_rows_), 0);
}

std::int32_t Gather::entry(int source, std::int64_t piece) const {
  return static_cast<std::int32_t>(source * pieces_ + piece);
}

void Gather::move(const Handshake& handshake, int rank) const {
  if (by_engine())
    move_by_engine(handshake, rank);
  else
    move_by_workers(handshake, rank);
}

/// Copies one piece of the rank's A to the gathered matrix of `dest`, and notifies its arrival.
void Gather::send_piece(int rank, std::int32_t lane, int dest, std::int64_t piece) const {
  const std::int64_t count = rows(rank, piece);
  if (count == 0) return;
  build_.step(rank, lane,
              Copy{build_.rows(build_.a, rank, first(piece), count),
                   build_.rows(gathered_, dest, rank * tiles_.shard + first(piece), count)});
  build_.step(rank, lane, Notify{{arrived_, dest, entry(rank, piece)}, 1});
}

void Gather::move_by_engine(const Handshake& handshake, int rank) const {
  const int world = build_.world();
  // All workers copy the own rows before the GEMM, which begins with them. Within a GPU a copy engine uses
  // workers, and would get only those that the GEMM leaves.
  Elementwise own = pass(rank, rank, 0, pieces_);
  own.resources = {1, build_.workers()};
  if (own.count != 0) build_.step(rank, compute_lane, std::move(own));
  const std::int32_t lane = build_.lane(rank, LaneKind::copy, "copy");
  handshake.await_all(build_, rank,
                      lane);  // at once, because a wait between two copies makes the engine pause
  const std::int64_t turns = interleaved() ? pieces_ : 1, each = pieces_ / turns;
  for (std::int64_t turn = 0; turn < turns; ++turn)
    for (int i = 1; i < world; ++i)
      for (std::int64_t piece = turn * each; piece < (turn + 1) * each; ++piece)
        send_piece(rank, lane, dest(rank, i), piece);
}

/// Workers push, or fetch, the same pieces: helpers beside the GEMM if there are any, else all workers before
/// it. Their stores may then overlap the GEMM.
void Gather::move_by_workers(const Handshake& handshake, int rank) const {
  const int world = build_.world();
  const bool pull = build_.params().pull;
  const std::int32_t lane = build_.helpers() > 0 ? build_.helper_lane(rank, "push") : compute_lane;
  const std::int64_t turns = interleaved() ? pieces_ : 1, each = pieces_ / turns;
  for (std::int64_t turn = 0; turn < turns; ++turn)
    for (int i = 0; i < world; ++i) {
      const int peer = pull ? source(rank, i) : dest(rank, i);
      if (turn == 0 && peer != rank) handshake.await(build_, rank, lane, peer);
      push(rank, lane, pull ? peer : rank, pull ? rank : peer, turn * each, each);
      if (fetched_ >= 0 && peer != rank && turn + 1 == turns)
        build_.step(rank, lane, Notify{{fetched_, peer, rank}, 1});
    }
}

/// Items of a shard that workers move. A communication tile has several items for workers to share.
TileGrid Gather::items(int source) const {
  constexpr std::int64_t most_cols = 1024;
  const std::int64_t cols = build_.problem().k;
  return make_grid(build_.problem().a_rows(source), cols, tiles_.inner.tile_rows,
                   static_cast<std::int32_t>(smaller(cols, most_cols)));
}

/// Position at which the items before a piece end.
std::int64_t Gather::items_before(const TileGrid& items, std::int64_t piece) const {
  return smaller(first(piece) / items.tile_rows * items.tiles_n(), items.positions());
}

/// Growth of `arrived` on a rank for one piece; 0 if the rank copies it in its GEMM's lane.
std::uint32_t Gather::arrivals(int rank, int source, std::int64_t piece) const {
  if (rows(source, piece) == 0) return 0;
  if (by_engine()) return source == rank ? 0 : 1;
  const TileGrid grid = items(source);
  return static_cast<std::uint32_t>(items_before(grid, piece + 1) - items_before(grid, piece));
}

/// Copies `count` pieces from `piece` on, at most to the end of the shard. An empty pass has no items.
Elementwise Gather::pass(int source, int dest, std::int64_t piece, std::int64_t count) const {
  const std::int64_t all = build_.problem().a_rows(source);
  Elementwise pass;
  pass.grid = items(source);
  pass.first = items_before(pass.grid, piece);
  const std::int64_t end = items_before(pass.grid, piece + count);
  pass.count = end == pass.grid.positions() && pass.first == 0 && end > 0 ? -1 : larger(end - pass.first, 0);
  pass.from.push_back(Builder::in_place(build_.rows(build_.a, source, 0, all)));
  pass.to = Builder::in_place(build_.rows(gathered_, dest, source * tiles_.shard, all));
  return pass;
}

void Gather::push(int rank, std::int32_t lane, int source, int dest, std::int64_t piece,
                  std::int64_t count) const {
  const std::int32_t helpers = build_.helpers();
  Elementwise pieces = pass(source, dest, piece, count);
  if (pieces.count == 0) return;
  TileNotify notify{arrived_, {dest}, {}};
  for (std::int64_t i = 0; i < pieces_ && rows(source, i) > 0; ++i) {
    notify.ends.push_back(items_before(pieces.grid, i + 1));
    notify.entries.push_back(entry(source, i));
  }
  pieces.notify.push_back(std::move(notify));
  pieces.resources = {1, helpers > 0 ? helpers : build_.workers()};
  build_.step(rank, lane, std::move(pieces));
}

void Gather::feed(int rank, Gemm& gemm) const {
  gemm.a = build_.all(gathered_, rank);
  if (interleaved())
    feed_by_pieces(rank, gemm);
  else
    feed_by_shards(rank, gemm);
  gemm.out.form = placement::Matrix{gemm.a_rows};
  gemm.resources = {1, build_.workers() - build_.helpers()};
}

void Gather::feed_together(int rank, Gemm& gemm) const {
  gemm.a = build_.all(gathered_, rank);
  for (int i = 0; i < build_.world(); ++i)
    for (std::int64_t piece = 0; piece < pieces_; ++piece) {
      const std::uint32_t target = arrivals(rank, source(rank, i), piece);
      if (target > 0)
        gemm.gates.push_back({arrived_, {gemm.grid.positions()}, {target}, {entry(source(rank, i), piece)}});
    }
  gemm.resources = {1, build_.workers() - build_.helpers()};
}

void Gather::feed_by_shards(int rank, Gemm& gemm) const {
  gemm.grid = tiles_.grid(rank, build_.params().comm_order == CommOrder::reverse);
  gemm.a_rows = tiles_.rows();
  TileGate gate{arrived_, tiles_.ends(), {}};
  for (int i = 0; i < build_.world(); ++i)
    for (std::int64_t band = 0; band < tiles_.bands; ++band) {
      const std::int64_t piece = smaller(band * tiles_.band_rows / comm_rows_, pieces_ - 1);
      gate.entries.push_back(entry(source(rank, i), piece));
      gate.targets.push_back(arrivals(rank, source(rank, i), piece));
    }
  gemm.gates.push_back(std::move(gate));
}

/// Orders virtual rows by pieces: the first piece of every shard, then the second, …; own pieces come first.
void Gather::feed_by_pieces(int rank, Gemm& gemm) const {
  const int world = build_.world();
  TileGrid all = piece_;
  all.rows = pieces_ * world * piece_.rows;
  all.loop_count = piece_.loop_count + 2;
  all.loops[0] = {Axis::m, static_cast<std::int32_t>(pieces_)};
  all.loops[1] = {Axis::m, world, rank};
  for (int i = 0; i < piece_.loop_count; ++i) all.loops[i + 2] = piece_.loops[i];
  gemm.grid = all;
  gemm.a_rows = {world, comm_rows_, tiles_.shard, tiles_.shard, 0, tiles_.limit, piece_.rows};
  TileGate gate{arrived_, {}, {}};
  for (std::int64_t piece = 0; piece < pieces_; ++piece)
    for (int i = 0; i < world; ++i) {
      gate.ends.push_back((piece * world + i + 1) * piece_.positions());
      gate.entries.push_back(entry(source(rank, i), piece));
      gate.targets.push_back(arrivals(rank, source(rank, i), piece));
    }
  gemm.gates.push_back(std::move(gate));
}

/// If blocks of rows are dealt to the ranks, a tile may have rows of several shards, and of several pieces of
/// each. It awaits all of these.
void Gather::feed_dealt(int rank, const ShardTiles& bands, Gemm& gemm) const {
  const Problem& p = build_.problem();
  gemm.a = build_.all(gathered_, rank);
  gemm.a_rows = sharded_rows(p, tiles_.shard);
  gemm.resources = {1, build_.workers() - build_.helpers()};
  const auto row = [&](std::int64_t band) { return smaller(band * bands.band_rows, p.m); };
  for (int i = 0; i < p.world; ++i) {
    const int shard = source(rank, i);
    // A gate awaits one piece for each band. Bands with rows of fewer pieces than others await their last one
    // again.
    struct Pieces {
      std::int64_t first, end;
    };
    std::vector<Pieces> needed;
    std::int64_t most = 0;
    for (std::int64_t band = 0; band < bands.bands; ++band) {
      const std::int64_t first = dealt_before(p, shard, row(band)),
                         end = dealt_before(p, shard, row(band + 1));
      needed.push_back(first < end ? Pieces{first / comm_rows_, (end - 1) / comm_rows_ + 1} : Pieces{0, 0});
      most = larger(most, needed.back().end - needed.back().first);
    }
    for (std::int64_t j = 0; j < most; ++j) {
      TileGate gate{arrived_, bands.ends(), {}};
      for (const auto& [first, end] : needed) {
        const std::int64_t piece = larger(smaller(first + j, end - 1), 0);
        gate.entries.push_back(entry(shard, piece));
        gate.targets.push_back(first < end ? arrivals(rank, shard, piece) : 0);
      }
      gemm.gates.push_back(std::move(gate));
    }
  }
}

void Gather::release(int rank) const {
  for (int i = 1; fetched_ >= 0 && i < build_.world(); ++i)
    build_.await(rank, compute_lane, fetched_, (rank + i) % build_.world());
}

ShardTiles gathered_tiles(const FusedBuilder& build, std::int64_t cols, const Machine& machine) {
  const Problem& p = build.problem();
  return {p.world, p.m, cols, with_tiles_of(p.epilogue, machine), build.params()};
}

void fuse_gather(FusedBuilder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const std::int64_t cols = build.product_cols();
  const Machine with_tiles = with_tiles_of(p.epilogue, machine);
  const ShardTiles tiles = gathered_tiles(build, cols, machine);
  const bool dealt = p.row_order == RowOrder::block_cyclic;
  std::optional<ShardTiles> in_order;  // tiles of all rows in their order, if not shard by shard
  if (dealt) {
    in_order = ShardTiles(1, p.m, cols, with_tiles, build.params());
    in_order->inner.rows = p.m;  // tiles beyond the last row are phantom
  } else {
    in_order = ShardTiles::together(p, cols, with_tiles, build.params());
  }
  const Gather gather(build, tiles, machine);
  const std::int32_t product = build.needs_finishing() ? build.buffer("product", p.m, cols) : build.out;
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    gather.move(handshake, r);
    Gemm gemm =
        build.gemm(r, in_order ? in_order->inner : tiles.grid(r),
                   in_order ? RowMap::identity(p.m) : tiles.rows(), Builder::in_place(build.all(product, r)));
    if (dealt)
      gather.feed_dealt(r, *in_order, gemm);
    else if (in_order)
      gather.feed_together(r, gemm);
    else
      gather.feed(r, gemm);
    build.step(r, compute_lane, std::move(gemm));
    finish_rows(build, r, product, p.m);
    gather.release(r);
  }
}

}  // namespace shingle::planner
