#include "attention_parts.hpp"

#include <algorithm>

namespace shingle::planner {

PartialAttention::PartialAttention(RingBuilder& build, const Timetable& timetable, int rank)
    : build_(build), rank_(rank) {
  for (const GlobalRun& run : build.problem().a_runs(rank)) runs_.push_back({run});
  for (const Queries& own : runs_) count(own.tokens());
  for (std::int64_t n = 0; n < timetable.count(rank); ++n)
    count(timetable.received(rank, timetable.turn(rank, n)).tokens);
}

void PartialAttention::count(const TokenRange& keys) {
  for (Queries& queries : runs_)
    if (!common(build_.problem().seeing(keys), queries.tokens()).empty()) ++queries.expected;
}

std::int64_t PartialAttention::most_of_a_run() const {
  std::int64_t most = 0;
  for (const Queries& queries : runs_) most = larger(most, queries.expected);
  return most;
}

void PartialAttention::attend_own(const PartBuffers& buffers) {
  for (const Queries& own : runs_)
    attend(buffers, own.tokens(), build_.rows(build_.keys, rank_, own.run.local_row, own.run.rows),
           build_.rows(build_.values, rank_, own.run.local_row, own.run.rows));
}

void PartialAttention::attend(const PartBuffers& buffers, const TokenRange& tokens, const Slice& keys,
                              const Slice& values) {
  const Problem& p = build_.problem();
  for (Queries& queries : runs_) {
    const GlobalRun& run = queries.run;
    const TokenRange seeing = common(p.seeing(tokens), queries.tokens());
    if (seeing.empty()) continue;
    const TokenRange seen = common(p.seen_by(seeing.first, seeing.count()), tokens);
    const auto of_seen = [&](Slice slice) {
      slice.row += seen.first - tokens.first;
      slice.rows = seen.count();
      return slice;
    };
    const std::int64_t row = seeing.first - run.global_row;
    const auto own = [&](std::int32_t buffer, std::int64_t shard) {
      return build_.rows(buffer, rank_, shard * p.shard_rows() + run.local_row + row, seeing.count());
    };
    const bool only = queries.expected == 1;
    auto slot = static_cast<std::int64_t>(queries.parts.size()) - (queries.merged ? 1 : 0);
    if (slot == most_parts) {
      merge(buffers, queries, false);
      slot = 0;
    }
    Attend step = build_.attend(seeing.first, own(build_.a, 0), of_seen(keys), of_seen(values),
                                only ? own(build_.out, 0) : own(buffers.value, slot));
    step.first_key = seen.first;
    if (only) {
      step.lse = build_.wanted_lse(rank_, run.local_row + row, seeing.count());
    } else {
      step.lse = own(buffers.lse, slot);
      queries.parts.push_back({row, step.out.slice, step.lse});
    }
    build_.step(rank_, compute_lane, std::move(step));
  }
}

void PartialAttention::merge(const PartBuffers& buffers, Queries& queries, bool last) {
  const auto rows = [&](std::int32_t buffer) {
    return build_.rows(buffer, rank_, queries.run.local_row, queries.run.rows);
  };
  Merge step;
  step.grid = build_.row_blocks(queries.run.rows, build_.problem().k);
  step.parts = std::move(queries.parts);
  step.to = Builder::in_place(rows(last ? build_.out : buffers.merged));
  step.lse =
      last ? build_.wanted_lse(rank_, queries.run.local_row, queries.run.rows) : rows(buffers.merged_lse);
  step.resources = build_.beside_communication();
  queries.parts.clear();
  if (!last) queries.parts.push_back({0, step.to.slice, step.lse});
  queries.merged = true;
  build_.step(rank_, compute_lane, std::move(step));
}

void PartialAttention::finish(const PartBuffers& buffers) {
  for (Queries& queries : runs_)
    if (queries.expected > 1) merge(buffers, queries, true);
}

PartBuffers make_part_buffers(RingBuilder& build, const std::vector<PartialAttention>& ranks) {
  const Problem& p = build.problem();
  std::int64_t most = 0;
  for (const PartialAttention& rank : ranks) most = larger(most, rank.most_of_a_run());
  PartBuffers made;
  if (most < 2) return made;
  const std::int64_t shard = p.shard_rows(), slots = smaller(most, most_parts);
  made.value = build.buffer("parts", slots * shard, p.k);
  made.lse = build.typed_buffer("lse", DType::f32, slots * shard, p.attention.heads);
  if (most <= most_parts) return made;
  made.merged = build.typed_buffer("merged", DType::f32, shard, p.k);
  made.merged_lse = build.typed_buffer("merged_lse", DType::f32, shard, p.attention.heads);
  return made;
}

}  // namespace shingle::planner
