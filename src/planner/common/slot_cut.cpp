#include "slot_cut.hpp"

#include <algorithm>
#include <numeric>

namespace shingle::planner {

SlotCut::SlotCut(const Routing& routing, std::vector<std::int64_t> shares)
    : world_(routing.world()), per_rank_(routing.experts_per_rank()), capacity_(routing.capacity()) {
  const std::int64_t runs = per_rank_ * world_;
  shares.resize(std::min(shares.size(), static_cast<std::size_t>(runs)));
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::int64_t shared = 0;
  for (const std::int64_t share : shares) ends_.push_back(runs * (shared += share) / all);
}

std::int64_t SlotCut::held_rows() const {
  return (2 * world_ - 1) * per_rank_ * capacity_;
}

std::vector<SlotCut::Run> SlotCut::runs(int rank, std::int64_t chunk) const {
  std::vector<Run> all;
  for (std::int64_t run = first_run(chunk); run < first_run(chunk + 1); ++run) {
    const int source = static_cast<int>((rank + run % world_) % world_);
    const std::int64_t weight = run / world_;
    all.push_back({source, static_cast<int>(weight), row(rank, source, weight)});
  }
  return all;
}

std::vector<SlotCut::Part> SlotCut::sent(int rank, std::int64_t chunk) const {
  std::vector<Part> parts;
  for (int i = 1; i < world_; ++i) {
    const int peer = (rank + i) % world_;
    const Weights some = weights(peer, rank, chunk);
    if (some.count > 0)
      parts.push_back({peer, (peer * per_rank_ + some.first) * capacity_, some.count * capacity_});
  }
  return parts;
}

std::vector<SlotCut::Part> SlotCut::received(int rank, std::int64_t chunk) const {
  std::vector<Part> parts;
  for (int i = 1; i < world_; ++i) {
    const int peer = (rank - i + world_) % world_;
    const Weights some = weights(rank, peer, chunk);
    if (some.count > 0) parts.push_back({peer, row(rank, peer, some.first), some.count * capacity_});
  }
  return parts;
}

SlotCut::Weights SlotCut::weights(int holder, int source, std::int64_t chunk) const {
  const std::int64_t turn = (source - holder + world_) % world_;  // of the source's run of each expert
  const auto before = [&](std::int64_t run) { return (run - turn + world_ - 1) / world_; };
  const std::int64_t first = before(first_run(chunk));
  return {first, before(first_run(chunk + 1)) - first};
}

std::int64_t SlotCut::row(int holder, int source, std::int64_t weight) const {
  const std::int64_t own = world_ * per_rank_;  // runs of the holder's own slots
  const std::int64_t run =
      source == holder ? holder * per_rank_ : own + (source - (source > holder ? 1 : 0)) * per_rank_;
  return (run + weight) * capacity_;
}

}  // namespace shingle::planner
