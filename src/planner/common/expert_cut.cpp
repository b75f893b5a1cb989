#include "expert_cut.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shingle::planner {
namespace {

/// Adds rows to the run of their expert and source, which is among the last ones, or begins one.
void add(std::vector<ExpertCut::Run>& runs, const ExpertCut::Run& block) {
  for (auto run = runs.rbegin(); run != runs.rend() && run->expert == block.expert; ++run)
    if (run->source == block.source) {
      run->rows += block.rows;
      return;
    }
  runs.push_back(block);
}

}  // namespace

std::int64_t ExpertCut::Share::total() const {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

ExpertCut::ExpertCut(const Routing& routing, std::int64_t tile_rows, std::int64_t tiles,
                     std::vector<std::int64_t> shares)
    : routing_(routing), world_(routing.world()), per_rank_(routing.experts_per_rank()) {
  const std::int64_t block_rows = tiles * tile_rows;
  std::int64_t most = 1;
  for (int rank = 0; rank < world_; ++rank) most = larger(most, units(rank, block_rows));
  const auto count = smaller(shares.size(), static_cast<std::size_t>(most));
  shares.resize(count);
  const auto ranks = static_cast<std::size_t>(world_);
  runs_.assign(ranks, std::vector<std::vector<Run>>(count));
  sent_.assign(ranks, std::vector<Share>(count, {0, std::vector<std::int64_t>(ranks, 0)}));
  received_ = sent_;
  for (int rank = 0; rank < world_; ++rank) cut(rank, tile_rows, block_rows, shares);
  lay_out();
  begins_.resize(ranks);
  for (int source = 0; source < world_; ++source) find_begins(source);
}

std::int64_t ExpertCut::units(int rank, std::int64_t rows) const {
  std::int64_t total = 0;
  for (int expert = rank * per_rank_; expert < (rank + 1) * per_rank_; ++expert)
    for (int source = 0; source < world_; ++source) total += ceil_div(routing_.count(source, expert), rows);
  return total;
}

void ExpertCut::cut(int rank, std::int64_t tile_rows, std::int64_t block_rows,
                    const std::vector<std::int64_t>& shares) {
  auto& runs = runs_[static_cast<std::size_t>(rank)];
  const std::int64_t total = units(rank, tile_rows);
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::int64_t tiles = 0;  // before the block
  std::size_t chunk = 0;
  std::int64_t shared = shares.front();  // of this chunk and those before
  for (int expert = rank * per_rank_; expert < (rank + 1) * per_rank_; ++expert) {
    std::int64_t most = 0;
    for (int source = 0; source < world_; ++source) most = larger(most, routing_.count(source, expert));
    // One block of each source after the other, so that a chunk has rows of many sources.
    for (std::int64_t first = 0; first < most; first += block_rows)
      for (int i = 0; i < world_; ++i) {
        const int source = (rank + i) % world_;
        const std::int64_t rows = smaller(routing_.count(source, expert) - first, block_rows);
        if (rows <= 0) continue;
        while (tiles * all >= shared * total) shared += shares[++chunk];
        add(runs[chunk], {source, expert, first, rows});
        tiles += ceil_div(rows, tile_rows);
      }
  }
}

/// Places the runs of each chunk behind those of the chunks before.
void ExpertCut::lay_out() {
  const auto ranks = static_cast<std::size_t>(world_);
  of_expert_.assign(ranks, std::vector<std::vector<Run>>(static_cast<std::size_t>(routing_.experts())));
  std::vector<std::int64_t> packed(ranks, 0), arrived(ranks, 0);
  for (std::size_t chunk = 0; chunk < runs_.front().size(); ++chunk) {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (const Run& run : runs_[rank][chunk]) {
        const auto source = static_cast<std::size_t>(run.source);
        sent_[source][chunk].rows[rank] += run.rows;
        received_[rank][chunk].rows[source] += run.rows;
      }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sent_[rank][chunk].first = packed[rank];
      Share& in = received_[rank][chunk];
      in.first = arrived[rank];
      arrived[rank] += in.total();
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Share& in = received_[rank][chunk];
      std::vector<std::int64_t> next{in.first};  // by source
      for (const std::int64_t rows : in.rows) next.push_back(next.back() + rows);
      for (Run& run : runs_[rank][chunk]) {
        const auto source = static_cast<std::size_t>(run.source);
        run.packed = std::exchange(packed[source], packed[source] + run.rows);
        run.arrived = std::exchange(next[source], next[source] + run.rows);
        of_expert_[source][static_cast<std::size_t>(run.expert)].push_back(run);
      }
    }
  }
}

void ExpertCut::find_begins(int source) {
  const auto& of_expert = of_expert_[static_cast<std::size_t>(source)];
  std::vector<std::int64_t> seen(of_expert.size(), 0);
  std::vector<std::size_t> run(of_expert.size(), 0);
  for (std::int64_t row = 0; row < routing_.rows(source); ++row) {
    const auto expert = static_cast<std::size_t>(routing_.dest(source, row));
    const Run& at = of_expert[expert][run[expert]];
    if (seen[expert]++ < at.first + at.rows) continue;
    begins_[static_cast<std::size_t>(source)].push_back(row);
    ++run[expert];
  }
}

std::int64_t ExpertCut::packed_row(int source, int expert, std::int64_t index) const {
  const auto& runs = of_expert_[static_cast<std::size_t>(source)][static_cast<std::size_t>(expert)];
  auto run = std::ranges::upper_bound(runs, index, {}, &Run::first);
  if (run == runs.begin()) return 0;  // the expert has no rows of the source
  --run;
  return run->packed + index - run->first;
}

Placement ExpertCut::packed(int source, std::int64_t first, const TileGrid& grid, const Slice& slice) const {
  placement::Pools pools{{}, source};
  pools.first = first;
  const auto begin_group = [&](std::int64_t row) {
    for (int expert = 0; expert < routing_.experts(); ++expert)
      pools.bases.push_back(packed_row(source, expert, routing_.count_before(source, expert, row)));
  };
  begin_group(first);
  for (const std::int64_t row : begins_[static_cast<std::size_t>(source)])
    if (row > first && row < first + grid.rows) {
      pools.ends.push_back(row - first);
      begin_group(row);
    }
  pools.ends.push_back(grid.positions());
  return {slice, std::move(pools)};
}

}  // namespace shingle::planner
