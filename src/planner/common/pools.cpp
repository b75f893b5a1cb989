#include "pools.hpp"

#include <utility>

#include "shingle/plan/placement.hpp"

namespace shingle::planner {

Pools::Pools(const Routing& routing, std::vector<TileGrid> grids, std::vector<std::vector<std::int64_t>> ends)
    : world_(routing.world()), grids_(std::move(grids)), ends_(std::move(ends)), rows_(world_) {
  for (int s = 0; s < world_; ++s) {
    const TileGrid& grid = grids_[s];
    std::vector<std::int64_t> before(world_, 0);
    for (const std::int64_t end : ends_[s]) {
      for (int d = 0; d < world_; ++d) {
        const std::int64_t until = routed_rows_before(routing, grid, s, d, end);
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
  placement::Pools pools{ends_[source], source};
  for (std::int64_t g = 0; g < groups(); ++g) {
    std::int64_t base = send_first_[source][g];
    for (int d = 0; d < world_; ++d) {
      pools.bases.push_back(base);
      base += rows(source, d, g);
    }
  }
  return {buffer, std::move(pools)};
}

Placement Pools::receive(int source, int dest, const Slice& buffer) const {
  placement::Pools pools{ends_[source], source, dest};
  for (std::int64_t g = 0; g < groups(); ++g) {
    std::int64_t base = receive_first_[dest][g];
    for (int s = 0; s < source; ++s) base += rows(s, dest, g);
    pools.bases.push_back(base);
  }
  return {buffer, std::move(pools)};
}

Elementwise pack(const Routing& routing, int rank, const TileGrid& grid, Placement from, const Slice& to) {
  placement::Pools pools{{grid.positions()}, rank};
  std::int64_t base = 0;
  for (int dest = 0; dest < routing.experts(); base += routing.count(rank, dest++))
    pools.bases.push_back(base);
  Elementwise pass;
  pass.grid = grid;
  pass.from.push_back(std::move(from));
  pass.to = {to, std::move(pools)};
  return pass;
}

Placement routed_rows(const Routing& routing, int source, int dest, const Slice& out) {
  return {out, placement::Routed{source, dest, {routing.receive_base(dest, source)}}};
}

}  // namespace shingle::planner
