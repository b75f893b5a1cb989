// Flash-AG: shards that go around the ring (docs/mechanisms/ring.md), and the engines that carry them.
#include <fmt/format.h>

#include "ring.hpp"

namespace shingle::planner {

namespace {

/// True if a rank passes on a slice of any shard. For a reduction it passes on all shards except its own. For
/// a gather it passes on all except the next rank's.
bool passes_on(const RingBuilder& build, const Shards& shards, int rank, std::int64_t s) {
  const Problem& p = build.problem();
  for (int shard = 0; shard < p.world; ++shard) {
    if (shards.rows(shard, s) == 0) continue;
    if (p.traits().reduces() && shard != rank) return true;
    if ((p.traits().gathers() || p.op == Op::gemm_allreduce) && shard != shards.behind(rank, -1)) return true;
  }
  return false;
}

}  // namespace

void begin_engines(RingBuilder& build, const Shards& shards) {
  if (!by_engines(build)) return;
  const std::int32_t begun = build.counter_of_begins();
  const std::int64_t engines = smaller(build.params().engines, shards.slices());
  for (int r = 0; r < build.world(); ++r) {
    const int next = shards.behind(r, -1);
    bool any = false;
    for (std::int64_t e = 0; e < engines; ++e) {
      const std::int32_t lane = build.lane(r, LaneKind::copy, fmt::format("engine {}", e));
      bool used = false;
      for (std::int64_t s = e; s < shards.slices(); s += engines) used |= passes_on(build, shards, r, s);
      if (used) build.await(r, lane, begun, next);
      any |= used;
    }
    if (any) build.notify_peer(next, compute_lane, begun, r, next);
  }
}

RingGather::RingGather(RingBuilder& build, const Shards& shards)
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

OutputGather::OutputGather(RingBuilder& build, const Shards& shards, std::int32_t finished)
    : build_(build), shards_(shards), finished_(finished) {
  if (by_engines(build))
    arrived_ = build.counter("arrived", (build.world() - 1) * shards.slices(), CounterKind::set);
}

/// Parts of a slice of a shard, in one rank's output.
std::vector<Slice> OutputGather::parts(int shard, std::int64_t s, int rank) const {
  std::vector<Slice> parts;
  const std::int64_t rows = shards_.rows(shard, s);
  const std::int64_t first = shard * build_.problem().shard_rows() + shards_.begin(s);
  if (rows > 0) parts.push_back(build_.rows(build_.out, rank, first, rows));
  if (rows > 0 && build_.sum >= 0) parts.push_back(build_.rows(build_.sum, rank, first, rows));
  return parts;
}

void OutputGather::step(int rank, std::int64_t i, std::int64_t s) const {
  if (by_engines(build_)) return copy_on(rank, i, s);
  const auto messages = [&](int shard, int peer) {
    std::vector<Exchange::Message> list;
    for (const Slice& part : parts(shard, s, rank)) list.push_back({peer, part});
    return list;
  };
  auto sends = messages(shards_.behind(rank, i), shards_.behind(rank, -1));
  auto receives = messages(shards_.behind(rank, i + 1), shards_.behind(rank, 1));
  if (sends.empty() && receives.empty()) return;
  if (i == 0 && !sends.empty()) build_.await(rank, communicate_lane, finished_, s);
  build_.exchange(rank, std::move(sends), std::move(receives));
}

void OutputGather::copy_on(int rank, std::int64_t i, std::int64_t s) const {
  const int shard = shards_.behind(rank, i), next = shards_.behind(rank, -1);
  const auto own = parts(shard, s, rank), there = parts(shard, s, next);
  if (own.empty()) return;
  const std::int32_t lane = engine_of(build_, s);
  build_.ring_doorbell(rank, lane);
  if (i == 0)
    build_.await(rank, lane, finished_, s);
  else
    build_.await(rank, lane, arrived_, (i - 1) * shards_.slices() + s);
  for (std::size_t part = 0; part < own.size(); ++part) build_.step(rank, lane, Copy{own[part], there[part]});
  build_.notify_peer(rank, lane, arrived_, next, i * shards_.slices() + s);
}

void OutputGather::await_last(int rank) const {
  if (!by_engines(build_)) return;  // a received message is already in the output
  const std::int64_t last = build_.world() - 1;
  for (std::int64_t s = 0; s < shards_.slices(); ++s)
    if (shards_.rows(shards_.behind(rank, last), s) > 0)
      build_.await(rank, compute_lane, arrived_, (last - 1) * shards_.slices() + s);
}

}  // namespace shingle::planner
