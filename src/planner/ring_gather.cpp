#include "ring.hpp"

namespace shingle::planner {

RingGather::RingGather(Builder& build, const Shards& shards)
    : build_(build), shards_(shards), shard_(build.problem().shard_rows()) {
  const std::int64_t others = build.world() - 1;
  if (others == 0) return;
  gathered_ = build.buffer("gathered", others * shard_, build.problem().k);
  arrived_ = build.counter("arrived", others * shards.slices());
}

Slice RingGather::held(int rank, std::int64_t places, std::int64_t s) const {
  const std::int64_t rows = shards_.rows(shards_.behind(rank, places), s);
  return places == 0 ? build_.rows(build_.a, rank, shards_.begin(s), rows)
                     : build_.rows(gathered_, rank, (places - 1) * shard_ + shards_.begin(s), rows);
}

void RingGather::pass_on(int rank, std::int64_t places, std::int64_t s) const {
  if (places + 1 >= build_.world()) return;
  const Slice own = held(rank, places, s), next = held(rank, places + 1, s);
  std::vector<Exchange::Message> sends, receives;
  if (own.rows > 0) sends.push_back({shards_.behind(rank, -1), own});
  if (next.rows > 0) receives.push_back({shards_.behind(rank, 1), next});
  if (own.rows + next.rows > 0) build_.exchange(rank, std::move(sends), std::move(receives));
  if (next.rows > 0) build_.notify(rank, communicate_lane, arrived_, places * shards_.slices() + s);
}

void RingGather::await(int rank, std::int64_t places, std::int64_t s) const {
  if (places > 0) build_.await(rank, compute_lane, arrived_, (places - 1) * shards_.slices() + s);
}

}  // namespace shingle::planner
