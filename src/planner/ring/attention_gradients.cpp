#include "attention_gradients.hpp"

#include <algorithm>

namespace shingle::planner {
namespace {

TokenRange range_of(const GlobalRun& run) {
  return {run.global_row, run.global_row + run.rows};
}

}  // namespace

RankGradients::RankGradients(RingBuilder& build, const Timetable& timetable, int rank)
    : build_(build), rank_(rank), longest_(timetable.longest()) {
  const Problem& p = build.problem();
  for (const GlobalRun& run : p.a_runs(rank)) runs_.push_back({run});
  for (std::int64_t turn = 0; turn < timetable.turns(); ++turn) {
    if (const KeyPiece& own = timetable.sent(rank, turn); !own.empty())
      ++arrivals_, ++run_of(own.tokens).key_parts;
    const KeyPiece& piece = timetable.received(rank, turn);
    std::int64_t seeing = 0;
    for (Run& queries : runs_)
      if (!piece.empty() && pair_of(p, queries.run, piece.tokens).queries.rows > 0)
        ++seeing, ++queries.q_parts, queries.q_direct = false;
    adds_runs_ = adds_runs_ || seeing > 1;
  }
  find_own_pairs();
}

/// A rank that sends or receives cuts a single run of queries in two blocks, so that both hide messages.
void RankGradients::find_own_pairs() {
  const Problem& p = build_.problem();
  const bool cuts =
      runs_.size() == 1 && runs_[0].run.rows > 1 && longest_ > 0 && (arrivals_ > 0 || !runs_[0].q_direct);
  struct Block {
    std::size_t run;
    GlobalRun rows;
  };
  std::vector<Block> blocks;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const GlobalRun& all = runs_[r].run;
    const std::int64_t half = cuts ? all.rows / 2 : all.rows;
    blocks.push_back({r, {all.local_row, all.global_row, half}});
    if (cuts) blocks.push_back({r, {all.local_row + half, all.global_row + half, all.rows - half}});
  }
  double scores = 0;
  std::vector<double> scores_before;
  for (std::size_t b = blocks.size(); b-- > 0;) {
    std::int64_t parts = 0;
    for (std::size_t k = 0; k < runs_.size(); ++k) {
      const Pair pair = pair_of(p, blocks[b].rows, runs_[k].tokens());
      if (pair.queries.rows == 0) continue;
      own_.push_back({b, blocks[b].run, k, pair});
      scores_before.push_back(scores);
      const bool triangular = p.attention.causal && pair.keys.end > pair.queries.global_row;
      scores += static_cast<double>(pair.queries.rows) * static_cast<double>(pair.keys.count()) /
                (triangular ? 2 : 1);
      ++parts, ++runs_[blocks[b].run].q_parts, ++runs_[k].key_parts;
    }
    if (parts > 1) runs_[blocks[b].run].q_direct = false;
  }
  const bool hides = arrivals_ > 0 || longest_ > 0;
  own_first_ = !hides ? own_.size()
                      : static_cast<std::size_t>(std::ranges::count_if(
                            scores_before, [&](double before) { return before < scores / 2; }));
}

RankGradients::Run& RankGradients::run_of(const TokenRange& tokens) {
  return *std::ranges::find_if(runs_, [&](const Run& run) { return common(run.tokens(), tokens) == tokens; });
}

std::int64_t RankGradients::most_q_parts() const {
  std::int64_t most = 0;
  for (const Run& run : runs_)
    if (!run.q_direct) most = larger(most, run.q_parts);
  return most;
}

bool RankGradients::adds_own_keys() const {
  return std::ranges::any_of(runs_, [](const Run& run) { return !run.keys_direct(); });
}

void RankGradients::use(const GradientBuffers& buffers) {
  buffers_ = buffers;
  for (Run& run : runs_) {
    const auto rows = [&](std::int32_t buffer) {
      return buffer < 0
                 ? TokenRows{}
                 : TokenRows{run.tokens(), build_.rows(buffer, rank_, run.run.local_row, run.run.rows)};
    };
    run.sums = {{rank_, rows(build_.out), rows(buffers.q_sums)},
                {rank_, rows(build_.keys_grad), rows(buffers.keys_sums)},
                {rank_, rows(build_.values_grad), rows(buffers.values_sums)}};
  }
}

void RankGradients::attend_own(bool first) {
  const std::int64_t shard = build_.problem().shard_rows();
  for (std::size_t i = first ? 0 : own_first_; i < (first ? own_first_ : own_.size()); ++i) {
    const OwnPair& own = own_[i];
    Run& of_keys = runs_[own.key_run];
    const std::int64_t row = of_keys.run.local_row + own.pair.keys.first - of_keys.run.global_row;
    const auto keys = [&](std::int32_t buffer, std::int64_t part) {
      return build_.rows(buffer, rank_, part * shard + row, own.pair.keys.count());
    };
    const auto part = static_cast<std::int64_t>(own.block);
    const bool direct = of_keys.keys_direct();
    const Slice to_keys = direct ? keys(build_.keys_grad, 0) : keys(buffers_.own_keys, part),
                to_values = direct ? keys(build_.values_grad, 0) : keys(buffers_.own_values, part);
    append(runs_[own.query_run], own.pair, keys(build_.keys, 0), keys(build_.values, 0), to_keys, to_values);
    if (direct) continue;
    of_keys.sums[1].add({own.pair.keys, to_keys});
    of_keys.sums[2].add({own.pair.keys, to_values});
  }
}

void RankGradients::attend(const TokenRange& tokens, const Slice& keys, const Slice& values,
                           const Slice& to_keys, const Slice& to_values) {
  struct Seeing {
    Run* queries;
    Pair pair;
  };
  std::vector<Seeing> all;
  for (Run& run : runs_)
    if (const Pair pair = pair_of(build_.problem(), run.run, tokens); pair.queries.rows > 0)
      all.push_back({&run, pair});
  std::vector<TokenRows> key_parts, value_parts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const TokenRange& seen = all[i].pair.keys;
    const auto place = [&](std::int32_t buffer, const Slice& to) {
      const Slice rows = all.size() == 1 ? to
                                         : build_.rows(buffer, rank_, static_cast<std::int64_t>(i) * longest_,
                                                       tokens.count());
      return TokenRows{seen, rows_of({tokens, rows}, seen)};
    };
    key_parts.push_back(place(buffers_.run_keys, to_keys));
    value_parts.push_back(place(buffers_.run_values, to_values));
    append(*all[i].queries, all[i].pair, rows_of({tokens, keys}, seen), rows_of({tokens, values}, seen),
           key_parts.back().at, value_parts.back().at);
  }
  if (all.size() == 1) return;
  sum_parts(build_, rank_, key_parts, {tokens, to_keys});
  sum_parts(build_, rank_, value_parts, {tokens, to_values});
}

void RankGradients::append(Run& queries, const Pair& pair, const Slice& keys, const Slice& values,
                           const Slice& to_keys, const Slice& to_values) {
  const Slice to = place_of_queries(queries, pair.queries);
  build_.step(
      rank_, compute_lane,
      build_.attend_backward(rank_, pair.queries, pair.keys.first, keys, values, {to, to_keys, to_values}));
  if (!queries.q_direct) queries.sums[0].add({range_of(pair.queries), to});
}

Slice RankGradients::place_of_queries(Run& queries, const GlobalRun& rows) {
  if (queries.q_direct) return build_.rows(build_.out, rank_, rows.local_row, rows.rows);
  if (queries.sums[0].parts() == most_gradient_parts) queries.sums[0].fold(build_);
  return build_.rows(buffers_.q_parts, rank_,
                     queries.sums[0].parts() * build_.problem().shard_rows() + rows.local_row, rows.rows);
}

void RankGradients::take(int from, const TokenRange& tokens, const Slice& keys, const Slice& values) {
  Run& run = run_of(tokens);
  for (const TokenRange& seen : seen_from(build_.problem(), from, tokens)) {
    run.sums[1].add({seen, rows_of({tokens, keys}, seen)});
    run.sums[2].add({seen, rows_of({tokens, values}, seen)});
  }
}

void RankGradients::fold_keys() {
  for (Run& run : runs_)
    if (run.sums[1].parts() > 0) run.sums[1].fold(build_), run.sums[2].fold(build_);
}

void RankGradients::finish_queries() {
  for (Run& run : runs_)
    if (!run.q_direct) run.sums[0].finish(build_);
}

void RankGradients::finish_keys() {
  for (Run& run : runs_)
    if (!run.keys_direct()) run.sums[1].finish(build_), run.sums[2].finish(build_);
}

GradientBuffers make_gradient_buffers(RingBuilder& build, const Timetable& timetable,
                                      const std::vector<RankGradients>& ranks) {
  const Problem& p = build.problem();
  const std::int64_t shard = p.shard_rows(), cols = p.kv_cols();
  std::int64_t q_parts = 0, arrivals = 0;
  bool own = false, runs = false;
  for (const RankGradients& rank : ranks) {
    q_parts = larger(q_parts, rank.most_q_parts());
    arrivals = larger(arrivals, rank.arrivals());
    own = own || rank.adds_own_keys();
    runs = runs || rank.adds_runs();
  }
  GradientBuffers made;
  if (q_parts > 0)
    made.q_parts = build.buffer("q_grad_parts", smaller(q_parts, most_gradient_parts) * shard, p.k);
  if (q_parts > most_gradient_parts) made.q_sums = build.typed_buffer("q_grad_sums", DType::f32, shard, p.k);
  if (own) {
    made.own_keys = build.buffer("keys_grad_parts", 2 * shard, cols);
    made.own_values = build.buffer("values_grad_parts", 2 * shard, cols);
  }
  if (runs) {
    made.run_keys = build.buffer("keys_grad_of_runs", 2 * timetable.longest(), cols);
    made.run_values = build.buffer("values_grad_of_runs", 2 * timetable.longest(), cols);
  }
  if (arrivals > GradientTransport::slots) {
    made.keys_sums = build.typed_buffer("keys_grad_sums", DType::f32, shard, cols);
    made.values_sums = build.typed_buffer("values_grad_sums", DType::f32, shard, cols);
  }
  return made;
}

}  // namespace shingle::planner
