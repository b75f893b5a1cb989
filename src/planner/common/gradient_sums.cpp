#include "gradient_sums.hpp"

#include <algorithm>
#include <utility>

namespace shingle::planner {
namespace {

/// The same tokens as ranges that are ascending and apart.
std::vector<TokenRange> united(std::vector<TokenRange> ranges) {
  std::ranges::sort(ranges, {}, &TokenRange::first);
  std::vector<TokenRange> joined;
  for (const TokenRange& one : ranges) {
    if (one.empty()) continue;
    if (!joined.empty() && one.first <= joined.back().end)
      joined.back().end = larger(joined.back().end, one.end);
    else
      joined.push_back(one);
  }
  return joined;
}

}  // namespace

Slice rows_of(const TokenRows& all, const TokenRange& tokens) {
  Slice slice = all.at;
  slice.row += tokens.first - all.tokens.first;
  slice.rows = tokens.count();
  return slice;
}

Pair pair_of(const Problem& p, const GlobalRun& queries, const TokenRange& keys) {
  const TokenRange seeing = common(p.seeing(keys), {queries.global_row, queries.global_row + queries.rows});
  if (seeing.empty()) return {};
  return {{queries.local_row + seeing.first - queries.global_row, seeing.first, seeing.count()},
          common(p.seen_by(seeing.first, seeing.count()), keys)};
}

std::vector<TokenRange> seen_from(const Problem& p, int rank, const TokenRange& keys) {
  std::vector<TokenRange> seen;
  for (const GlobalRun& run : p.a_runs(rank)) seen.push_back(pair_of(p, run, keys).keys);
  return united(std::move(seen));
}

void sum_parts(Builder& build, int rank, const std::vector<TokenRows>& parts, const TokenRows& to) {
  std::vector<std::int64_t> cuts;
  for (const TokenRows& part : parts) {
    const TokenRange held = common(part.tokens, to.tokens);
    if (!held.empty()) cuts.insert(cuts.end(), {held.first, held.end});
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    const TokenRange tokens{cuts[i], cuts[i + 1]};
    Elementwise pass;
    for (const TokenRows& part : parts)
      if (common(part.tokens, tokens) == tokens)
        pass.from.push_back(Builder::in_place(rows_of(part, tokens)));
    pass.to = Builder::in_place(rows_of(to, tokens));
    if (pass.from.empty() || (pass.from.size() == 1 && pass.from[0] == pass.to)) continue;
    pass.grid = build.row_blocks(tokens.count(), to.at.cols);
    pass.resources = build.beside_communication();
    build.step(rank, compute_lane, std::move(pass));
  }
}

std::vector<TokenRows> GradientSum::sources() const {
  std::vector<TokenRows> all;
  for (const TokenRange& tokens : folded_) all.push_back({tokens, rows_of(running_, tokens)});
  all.insert(all.end(), parts_.begin(), parts_.end());
  return all;
}

void GradientSum::fold(Builder& build) {
  sum_parts(build, rank_, sources(), running_);
  for (const TokenRows& part : parts_) folded_.push_back(common(part.tokens, running_.tokens));
  folded_ = united(std::move(folded_));
  parts_.clear();
}

void GradientSum::finish(Builder& build) {
  sum_parts(build, rank_, sources(), result_);
  parts_.clear();
}

}  // namespace shingle::planner
