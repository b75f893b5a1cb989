// Costs of rows that the device counts, of which those are priced that are expected to have a token: tiles
// that take time, how evenly workers of a gated product get them, and the part of a pass's rows that are
// stored.
#include <algorithm>

#include "costs.hpp"
#include "demand.hpp"
#include "lower/launch_rules.hpp"
#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"

namespace shingle::sim {

ProductTile Costs::tile_of(const Gemm& gemm, std::int64_t item) const {
  ProductTile tile = product_tile(gemm, gemm.grid.tile(item));
  if (gemm.live.buffer >= 0 && tile.group != nullptr)
    tile.rect.rows = std::clamp<std::int64_t>(
        expected_rows_of_group(plan_.problem(), *tile.group) - tile.in_group, 0, tile.rect.rows);
  return tile;
}

std::int64_t Costs::cluster_of(const Gemm& gemm) const {
  return on_streams(machine_) ? tiles_of_cluster(gemm.grid) : 1;
}

std::int64_t Costs::live_tiles(const Gemm& gemm, std::int64_t end) const {
  const TileGrid& grid = gemm.grid;
  const bool counted = gemm.live.buffer >= 0;
  if (!counted && grid.tiles() == grid.positions()) return end;
  const std::int64_t cluster = cluster_of(gemm);
  if (!counted && cluster == 1) return grid.tiles_before(end);
  std::vector<std::int64_t>& before = live_before_[&gemm];
  if (before.empty()) {
    before.push_back(0);
    const auto holds = [&](std::int64_t position) {
      const TileRect rect = tile_of(gemm, position).rect;
      return rect.rows > 0 && rect.cols > 0;
    };
    for (std::int64_t first = 0; first < grid.positions(); first += cluster) {
      bool any = false;
      for (std::int64_t i = 0; i < cluster; ++i) any = any || holds(first + i);
      for (std::int64_t i = 0; i < cluster; ++i) before.push_back(before.back() + (any ? 1 : 0));
    }
  }
  return before[static_cast<std::size_t>(end)];
}

double Costs::filled(const Elementwise& step) const {
  // Sums of choices have as many rows as there are tokens.
  if (step.from.size() != 1 || !is_indexed(step.from.front()) || step.factors != Slice{}) return 1;
  const Problem& problem = plan_.problem();
  // A pass over merged slots has those of all ranks.
  const std::int64_t sources =
      larger(step.grid.rows / (problem.experts.count * problem.experts.capacity), std::int64_t{1});
  return static_cast<double>(problem.expected_rows(sources)) /
         static_cast<double>(sources * problem.experts.capacity);
}

double Costs::uneven(const Gemm& gemm, std::int32_t workers) const {
  if (gemm.live.buffer < 0 || gemm.gates.empty() || !on_streams(machine_)) return 1;
  double& ratio = uneven_[{&gemm, workers}];
  if (ratio > 0) return ratio;
  const std::int64_t cluster = cluster_of(gemm), positions = gemm.grid.positions();
  std::vector<std::int64_t> taken(static_cast<std::size_t>(larger(workers / cluster, std::int64_t{1})), 0);
  for (std::int64_t i = 0; i < positions; i += cluster)  // a cluster's first tile stands for all
    if (live_tiles(gemm, i + 1) > live_tiles(gemm, i))
      ++taken[static_cast<std::size_t>(i / cluster) % taken.size()];
  const std::int64_t even =
      ceil_div(live_tiles(gemm, positions), cluster * static_cast<std::int64_t>(taken.size()));
  ratio = static_cast<double>(std::ranges::max(taken)) / static_cast<double>(larger(even, std::int64_t{1}));
  return ratio = std::max(ratio, 1.0);
}

}  // namespace shingle::sim
