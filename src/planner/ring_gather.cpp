// Flash-AG: shards that go around the ring (docs/ring.md); and the engines that take them there.
#include <fmt/format.h>

#include "ring.hpp"

namespace shingle::planner {

namespace {

/// Whether a rank passes a slice of any shard on: to be summed all but its own, to be gathered all but that
/// of the next rank.
bool passes_on(const Builder& build, const Shards& shards, int rank, std::int64_t s) {
  const Problem& p = build.problem();
  for (int shard = 0; shard < p.world; ++shard) {
    if (shards.rows(shard, s) == 0) continue;
    if (p.reduces() && shard != rank) return true;
    if ((p.gathers() || p.op == Op::gemm_allreduce) && shard != shards.behind(rank, -1)) return true;
  }
  return false;
}

}  // namespace

void begin_engines(Builder& build, const Shards& shards) {
  if (!by_engines(build)) return;
  const std::int32_t begun = build.counter("begun", 1);
  const std::int64_t engines = smaller(build.params().engines, shards.slices());
  for (int r = 0; r < build.world(); ++r) {
    bool any = false;
    for (std::int64_t e = 0; e < engines; ++e) {
      const std::int32_t lane = build.lane(r, LaneKind::copy, fmt::format("engine {}", e));
      bool used = false;
      for (std::int64_t s = e; s < shards.slices(); s += engines) used |= passes_on(build, shards, r, s);
      if (used) build.await(r, lane, begun, 0);
      any |= used;
    }
    if (any) build.notify_peer(shards.behind(r, -1), compute_lane, begun, r, 0);
  }
}

RingGather::RingGather(Builder& build, const Shards& shards)
    : build_(build), shards_(shards), shard_(build.problem().shard_rows()) {
  const std::int64_t others = build.world() - 1;
  if (others == 0) return;
  gathered_ = build.buffer("gathered", others * shard_, build.problem().k);
  arrived_ = build.counter("arrived", others * shards.slices(),
                           by_engines(build) ? CounterKind::set : CounterKind::add);
}

Slice RingGather::held(int rank, std::int64_t places, std::int64_t s) const {
  const std::int64_t rows = shards_.rows(shards_.behind(rank, places), s);
  return places == 0 ? build_.rows(build_.a, rank, shards_.begin(s), rows)
                     : build_.rows(gathered_, rank, (places - 1) * shard_ + shards_.begin(s), rows);
}

void RingGather::pass_on(int rank, std::int64_t places, std::int64_t s) const {
  if (places + 1 >= build_.world()) return;
  if (by_engines(build_)) return copy_on(rank, places, s);
  const Slice own = held(rank, places, s), next = held(rank, places + 1, s);
  std::vector<Exchange::Message> sends, receives;
  if (own.rows > 0) sends.push_back({shards_.behind(rank, -1), own});
  if (next.rows > 0) receives.push_back({shards_.behind(rank, 1), next});
  if (own.rows + next.rows > 0) build_.exchange(rank, std::move(sends), std::move(receives));
  if (next.rows > 0) build_.notify(rank, communicate_lane, arrived_, places * shards_.slices() + s);
}

void RingGather::copy_on(int rank, std::int64_t places, std::int64_t s) const {
  const Slice own = held(rank, places, s);
  if (own.rows == 0) return;
  const std::int32_t lane = engine_of(build_, s);
  const int next = shards_.behind(rank, -1);
  build_.ring_doorbell(rank, lane);
  await(rank, places, s, lane);
  build_.step(rank, lane, Copy{own, held(next, places + 1, s)});
  build_.notify_peer(rank, lane, arrived_, next, places * shards_.slices() + s);
}

void RingGather::await(int rank, std::int64_t places, std::int64_t s, std::int32_t lane) const {
  if (places > 0) build_.await(rank, lane, arrived_, (places - 1) * shards_.slices() + s);
}

}  // namespace shingle::planner
