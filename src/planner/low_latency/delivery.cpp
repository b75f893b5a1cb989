#include "delivery.hpp"

namespace shingle::planner {
namespace {

constexpr std::int64_t most_tiles = 32;  // of a slot: enough for the workers of a host

}  // namespace

Delivery::Delivery(Builder& build, const std::string& name, std::int64_t rows, std::int64_t cols)
    : build_(build),
      rows_(rows),
      cols_(cols),
      flagged_(build.flagged_buffer(name, build.world() * rows, cols)),
      arrived_(build.counter_of_arrivals(name + " arrived", build.world() * grid(rows).tiles())),
      present_(build.counter_of_arrivals(name + " present", build.world())) {}

TileGrid Delivery::grid(std::int64_t rows) const {
  const std::int64_t tile = larger(ceil_div(rows_, most_tiles), 1);
  return make_grid(rows, cols_, static_cast<std::int32_t>(tile), static_cast<std::int32_t>(cols_));
}

void Delivery::begin(int rank) const {
  for (const std::int32_t peer : others(build_, rank))
    build_.notify_peer(rank, compute_lane, present_, peer, rank);
}

void Delivery::end(int rank) const {
  for (const std::int32_t peer : others(build_, rank)) build_.await(rank, compute_lane, present_, peer);
}

void Delivery::send(int rank, const Slice& rows, std::vector<std::int32_t> to) const {
  if (rows.rows == 0 || to.empty()) return;
  Elementwise pass;
  pass.grid = grid(rows.rows);
  pass.from.push_back(Builder::in_place(rows));
  pass.to = slot(to.front(), rank, rows.rows);
  std::get<placement::Matrix>(pass.to.form).ranks = to;
  TileNotify notify{arrived_, std::move(to), {}};
  for (std::int64_t tile = 0; tile < pass.grid.tiles(); ++tile) {
    notify.ends.push_back(tile + 1);
    notify.entries.push_back(static_cast<std::int32_t>(rank * grid(rows_).tiles() + tile));
  }
  pass.notify.push_back(std::move(notify));
  build_.step(rank, compute_lane, std::move(pass));
}

Placement Delivery::slot(int rank, int from, std::int64_t rows) const {
  return Builder::in_place(build_.rows(flagged_, rank, from * rows_, rows));
}

TileGate Delivery::arrival(int from, std::int64_t rows) const {
  TileGate gate{arrived_, {}, {}};
  for (std::int64_t tile = 0; tile < grid(rows).tiles(); ++tile) {
    gate.ends.push_back(tile + 1);
    gate.targets.push_back(1);
    gate.entries.push_back(static_cast<std::int32_t>(from * grid(rows_).tiles() + tile));
  }
  return gate;
}

std::vector<std::int32_t> others(const Builder& build, int rank) {
  std::vector<std::int32_t> ranks;
  for (int i = 1; i < build.world(); ++i) ranks.push_back((rank + i) % build.world());
  return ranks;
}

}  // namespace shingle::planner
