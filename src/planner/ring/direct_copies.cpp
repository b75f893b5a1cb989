#include "direct_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shingle::planner {

DirectCopies::DirectCopies(RingBuilder& build)
    : build_(build),
      handshake_(build),
      lanes_(static_cast<std::size_t>(build.world())),
      begun_(static_cast<std::size_t>(build.world())) {
  for (int rank = 0; rank < build.world(); ++rank) {
    auto& lanes = lanes_[static_cast<std::size_t>(rank)];
    if (by_stores(build)) lanes.push_back(build.lane(rank, LaneKind::compute, "push"));
    for (std::int32_t e = 0; e < build.params().engines; ++e)
      lanes.push_back(build.lane(rank, LaneKind::copy, fmt::format("engine {}", e)));
  }
}

CounterKind DirectCopies::counts(const RingBuilder& build) {
  return by_stores(build) ? CounterKind::add : CounterKind::set;
}

std::int32_t DirectCopies::begin(int rank, std::int64_t number, int peer) {
  const auto& lanes = lanes_[static_cast<std::size_t>(rank)];
  const std::int32_t lane = lanes[static_cast<std::size_t>(number) % lanes.size()];
  const auto& begun = begun_[static_cast<std::size_t>(rank)];
  const auto known = begun.lower_bound({lane, 0});
  if (!by_stores(build_) && known != begun.end() && known->first == lane) build_.ring_doorbell(rank, lane);
  await_begin(rank, lane, peer);
  return lane;
}

void DirectCopies::copy(int rank, std::int32_t lane, const Slice& from, const Slice& to) {
  if (!by_stores(build_)) return build_.step(rank, lane, Copy{from, to});
  Elementwise pass = build_.copy(from, to);
  // Exactly so many: more would take turns on the link, and SMs from the attention meanwhile.
  const std::int32_t workers = std::max(build_.collective_workers(), 1);
  pass.resources = {workers, workers};
  build_.step(rank, lane, std::move(pass));
}

void DirectCopies::await_begin(int rank, std::int32_t lane, int peer) {
  if (begun_[static_cast<std::size_t>(rank)].emplace(lane, peer).second)
    handshake_.await(build_, rank, lane, peer);
}

void DirectCopies::notify_from_compute(int rank, std::int32_t counter, int peer, std::int64_t entry) {
  await_begin(rank, compute_lane, peer);
  build_.notify_peer(rank, compute_lane, counter, peer, entry);
}

}  // namespace shingle::planner
