// sequential for allgather+attention: an all-gather each of K and of V, then the attention of own queries.
#include "sequential.hpp"

namespace shingle::planner {
namespace {

/// K or V on its way to every rank: buffers.
struct Gathered {
  std::int32_t user;
  std::int32_t sent;     ///< the user's, or a copy with the rows of the largest shard
  std::int32_t shards;   ///< shards of all ranks, one behind another
  std::int32_t ordered;  ///< the same in the order of their tokens
};

Gathered gather(Builder& build, std::int32_t user, const std::string& name) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows(), cols = p.kv_cols();
  Gathered at{user, user, -1, -1};
  // NCCL and MPI need equal parts.
  if (p.m != p.world * shard) at.sent = build.buffer("padded_" + name, shard, cols);
  at.shards = at.ordered = build.buffer(name + "_of_all", p.world * shard, cols);
  if (p.row_order == RowOrder::zigzag) at.ordered = build.buffer(name + "_in_order", p.m, cols);
  return at;
}

void sort_tokens(Builder& build, int rank, const Gathered& at) {
  const Problem& p = build.problem();
  for (int owner = 0; owner < p.world && at.ordered != at.shards; ++owner)
    for (const GlobalRun& run : p.a_runs(owner))
      build.step(rank, compute_lane,
                 build.copy(build.rows(at.shards, rank, owner * p.shard_rows() + run.local_row, run.rows),
                            build.rows(at.ordered, rank, run.global_row, run.rows)));
}

}  // namespace

KeysOfAll all_gather_keys(Builder& build) {
  const Problem& p = build.problem();
  const Gathered matrices[] = {gather(build, build.keys, "keys"), gather(build, build.values, "values")};
  const auto& [keys, values] = matrices;
  const std::int32_t padded = keys.sent != keys.user ? build.counter("padded", 1) : -1;
  const std::int32_t arrived = build.counter("arrived", 1);
  for (int r = 0; r < p.world; ++r) {
    const std::int64_t own = p.a_rows(r);
    for (const Gathered& at : matrices)
      if (padded >= 0 && own > 0)
        build.step(r, compute_lane, build.copy(build.all(at.user, r), build.rows(at.sent, r, 0, own)));
    if (padded >= 0) hand_over(build, r, padded, compute_lane, communicate_lane);
    for (const Gathered& at : matrices)
      build.collective(r, CollectiveKind::allgather, build.all(at.sent, r), build.all(at.shards, r));
    hand_over(build, r, arrived, communicate_lane, compute_lane);
    for (const Gathered& at : matrices) sort_tokens(build, r, at);
  }
  return {keys.ordered, values.ordered};
}

void gather_keys(Builder& build) {
  const Problem& p = build.problem();
  const auto [keys, values] = p.world == 1 ? KeysOfAll{build.keys, build.values} : all_gather_keys(build);
  for (int r = 0; r < p.world; ++r)
    for (const GlobalRun& run : p.a_runs(r)) {
      Attend step = build.attend(run.global_row, build.rows(build.a, r, run.local_row, run.rows),
                                 build.rows(keys, r, 0, p.m), build.rows(values, r, 0, p.m),
                                 build.rows(build.out, r, run.local_row, run.rows));
      step.lse = build.wanted_lse(r, run.local_row, run.rows);
      build.step(r, compute_lane, std::move(step));
    }
}

}  // namespace shingle::planner
