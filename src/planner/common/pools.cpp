#include "pools.hpp"

namespace shingle::planner {

Pools::Pools(const Routing& routing, std::vector<TileGrid> grids, std::vector<std::vector<std::int64_t>> ends)
    : world_(routing.world()), grids_(std::move(grids)), ends_(std::move(ends)), rows_(world_) {
  for (int s = 0; s < world_; ++s) {
    const TileGrid& grid = grids_[s];
    std::vector<std::int64_t> before(world_, 0);
    for (const std::int64_t end : ends_[s]) {
      for (int d = 0; d < world_; ++d) {
        const auto rows_to = [&](std::int64_t lo, std::int64_t hi) {
          return routing.count_before(s, d, smaller(hi * grid.tile_rows, grid.rows)) -
                 routing.count_before(s, d, smaller(lo * grid.tile_rows, grid.rows));
        };
        const std::int64_t until = grid.sum_before(end, rows_to, TileGrid::Count{});
        rows_[s].push_back(until - before[d]);
        before[d] = until;
      }
    }
  }
  send_first_.assign(world_, {0});
  receive_first_.assign(world_, {0});
  for (std::int64_t g = 0; g < groups(); ++g) {
    for (int r = 0; r < world_; ++r) {
      std::int64_t out = 0, in = 0;
      for (int peer = 0; peer < world_; ++peer) out += rows(r, peer, g), in += rows(peer, r, g);
      send_first_[r].push_back(send_first_[r].back() + out);
      receive_first_[r].push_back(receive_first_[r].back() + in);
    }
  }
}

std::vector<std::int64_t> Pools::sent(int source, std::int64_t group) const {
  std::vector<std::int64_t> counts;
  for (int d = 0; d < world_; ++d) counts.push_back(rows(source, d, group));
  return counts;
}

std::vector<std::int64_t> Pools::received(int dest, std::int64_t group) const {
  std::vector<std::int64_t> counts;
  for (int s = 0; s < world_; ++s) counts.push_back(rows(s, dest, group));
  return counts;
}

Placement Pools::send(int source, const Slice& buffer) const {
  Placement at;
  at.kind = PlacementKind::pools;
  at.slice = buffer;
  at.ends = ends_[source];
  at.source = source;
  for (std::int64_t g = 0; g < groups(); ++g) {
    std::int64_t base = send_first_[source][g];
    for (int d = 0; d < world_; ++d) {
      at.bases.push_back(base);
      base += rows(source, d, g);
    }
  }
  return at;
}

Placement Pools::receive(int source, int dest, const Slice& buffer) const {
  Placement at;
  at.kind = PlacementKind::pools;
  at.slice = buffer;
  at.ends = ends_[source];
  at.source = source;
  at.dest = dest;
  for (std::int64_t g = 0; g < groups(); ++g) {
    std::int64_t base = receive_first_[dest][g];
    for (int s = 0; s < source; ++s) base += rows(s, dest, g);
    at.bases.push_back(base);
  }
  return at;
}

Elementwise pack(const Routing& routing, int rank, const TileGrid& grid, Placement from, const Slice& to) {
  Elementwise pass;
  pass.grid = grid;
  pass.from.push_back(std::move(from));
  pass.to.kind = PlacementKind::pools;
  pass.to.slice = to;
  pass.to.ends = {grid.positions()};
  pass.to.source = rank;
  std::int64_t base = 0;
  for (int peer = 0; peer < routing.world(); base += routing.count(rank, peer++))
    pass.to.bases.push_back(base);
  return pass;
}

Placement routed_rows(const Routing& routing, int source, int dest, const Slice& out) {
  Placement at;
  at.kind = PlacementKind::routed;
  at.slice = out;
  at.source = source;
  at.dest = dest;
  at.bases = {routing.receive_base(dest, source)};
  return at;
}

}  // namespace shingle::planner
