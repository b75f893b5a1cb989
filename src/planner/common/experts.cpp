#include "experts.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"
#include "slots.hpp"

namespace shingle::planner {
namespace {

/// Calls visit(group) for the rows that a rank receives from a source for one of its experts, if there are
/// any. The group's rows are those of A and of the output, in the order of the rows that the rank receives.
/// Source `first` comes first.
template <class Visit>
void for_each_group(const Routing& routing, int rank, int first, Visit&& visit) {
  const int experts = routing.experts_per_rank();
  for (int i = 0; i < routing.world(); ++i)
    for (int weight = 0; weight < experts; ++weight) {
      const int source = (first + i) % routing.world(), expert = routing.first_expert(rank) + weight;
      if (const std::int64_t rows = routing.count(source, expert); rows > 0)
        visit(RowGroup{routing.receive_base(expert, source), routing.receive_base(expert, source), rows,
                       weight, live_element(routing, rank, source, weight)});
    }
}

/// Units of `unit` rows that a counted group is expected to have if each expert is chosen equally often, and
/// tokens choose independently: its rows then have a Poisson distribution, nearly a normal one.
double expected_units(double rows, double unit) {
  double units = 1 - std::exp(-rows);
  for (double beyond = unit; beyond < rows + 6 * std::sqrt(rows); beyond += unit)
    units += 0.5 * std::erfc((beyond + 0.5 - rows) / std::sqrt(2 * rows));
  return units;
}

/// Rows that all tiles are expected to have, also empty ones, if a group has whole units of `unit` rows.
double computed_rows(const Builder& build, const std::vector<RowGroup>& groups, std::int64_t unit) {
  double units = 0;
  for (const RowGroup& group : groups) {
    const auto most = static_cast<double>(ceil_div(group.rows, unit));
    if (group.live < 0) {
      units += most;
      continue;
    }
    const auto rows = static_cast<double>(expected_rows_of_group(build.problem(), group));
    units += std::min(most, expected_units(rows, static_cast<double>(unit)));
  }
  return units * static_cast<double>(unit);
}

/// Height of the tiles of groups: half of `whole` if whole tiles would be much emptier.
std::int32_t height_for(const Builder& build, const std::vector<RowGroup>& groups, std::int32_t whole) {
  constexpr double slower = 1.35;  // a row of lower tiles, on H200
  const std::int32_t half = whole / 2;
  if (whole % 2 != 0 || half < 64) return whole;
  return slower * computed_rows(build, groups, half) < computed_rows(build, groups, whole) ? half : whole;
}

/// Tiles of a cluster of groups' tiles: `asked`, or one if clusters would be emptier by more than they gain.
std::int32_t cluster_for(const Builder& build, const std::vector<RowGroup>& groups, std::int32_t rows,
                         std::int32_t asked) {
  constexpr double gain = 1.1;
  const double alone = computed_rows(build, groups, rows),
               together = computed_rows(build, groups, std::int64_t{rows} * asked);
  return together > gain * alone ? 1 : asked;
}

}  // namespace

std::int64_t tokens_of(const Problem& problem, int rank) {
  return problem.has_slots() ? problem.m : problem.routing->rows(problem.source_of(rank)) / problem.choices();
}

std::vector<RowGroup> groups_by_expert(const Routing& routing, int rank) {
  const int sources = routing.capacity() > 0 ? 1 : routing.world();  // of a group
  std::vector<RowGroup> groups;
  for (int weight = 0; weight < routing.experts_per_rank(); ++weight) {
    const int expert = routing.first_expert(rank) + weight;
    for (int source = 0; source < routing.world(); source += sources) {
      const std::int64_t first = routing.receive_base(expert, source);
      if (const std::int64_t rows = routing.receive_base(expert, source + sources) - first; rows > 0)
        groups.push_back({first, first, rows, weight, live_element(routing, rank, source, weight)});
    }
  }
  return groups;
}

std::vector<RowGroup> groups_by_source(const Routing& routing, int rank) {
  std::vector<RowGroup> groups;
  std::int64_t first = 0;
  for_each_group(routing, rank, 0, [&](RowGroup group) {
    group.a_row = first;
    groups.push_back(group);
    first += group.rows;
  });
  return groups;
}

std::vector<RowGroup> groups_to_source(const Routing& routing, int rank) {
  std::vector<RowGroup> groups = groups_by_source(routing, rank);
  for (RowGroup& group : groups) std::swap(group.a_row, group.row);
  return groups;
}

PositionRuns runs_by(const Gemm& product, const std::vector<std::int32_t>& keys) {
  PositionRuns runs;
  for (std::int64_t position = 0; position < product.grid.positions(); ++position) {
    const ProductTile tile = product_tile(product, product.grid.tile(position));
    const bool phantom = tile.group == nullptr || tile.rect.cols == 0 || keys.empty();
    const std::int32_t key =
        phantom ? -1 : keys[static_cast<std::size_t>(tile.group - product.groups.data())];
    if (!runs.ends.empty() && (phantom || runs.keys.back() == key)) {
      runs.ends.back() = position + 1;
    } else {
      runs.ends.push_back(position + 1);
      runs.keys.push_back(larger(key, 0));
    }
  }
  return runs;
}

void await_by_key(Gemm& product, const std::vector<std::int32_t>& keys, std::int32_t counter,
                  const std::vector<std::uint32_t>& targets) {
  PositionRuns runs = runs_by(product, keys);
  TileGate gate{counter, std::move(runs.ends), {}, std::move(runs.keys)};
  for (const std::int32_t key : gate.entries) gate.targets.push_back(targets[static_cast<std::size_t>(key)]);
  if (!gate.ends.empty()) product.gates.push_back(std::move(gate));
}

std::vector<std::uint32_t> count_by_key(Gemm& product, const std::vector<std::int32_t>& keys,
                                        std::int32_t counter, std::int64_t entries) {
  PositionRuns runs = runs_by(product, keys);
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(entries), 0);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < runs.ends.size(); ++i) {
    const std::int64_t tiles = product.grid.tiles_before(runs.ends[i]);
    counts[static_cast<std::size_t>(runs.keys[i])] += static_cast<std::uint32_t>(tiles - before);
    before = tiles;
  }
  TileNotify notify{counter, {product.a.rank}, std::move(runs.ends), std::move(runs.keys)};
  if (!notify.ends.empty()) product.notify.push_back(std::move(notify));
  return counts;
}

TileOrder order_of_groups(const Machine& machine, const TileOrder& asked) {
  if (asked != TileOrder{}) return asked;
  return {Raster::along_n, machine.order.swizzle, machine.order.cluster_m, 1, 0};
}

std::int64_t unit_rows(const Machine& machine, const TileParams& asked, const Epilogue& epilogue) {
  return std::int64_t{tile_size(with_tiles_of(epilogue, machine), asked).rows} *
         order_of_groups(machine, asked.order).cluster_m;
}

Gemm grouped(const Builder& build, const Machine& machine, const TileParams& asked, Gemm product,
             std::vector<RowGroup> groups) {
  TileSize tile = tile_size(with_tiles_of(product.epilogue, machine), asked);
  if (asked.rows == 0) tile.rows = height_for(build, groups, tile.rows);
  TileOrder order = order_of_groups(machine, asked.order);
  order.cluster_m = cluster_for(build, groups, tile.rows, order.cluster_m);
  return build.grouped(std::move(product), std::move(groups), tile, order);
}

Gemm grouped(const Builder& build, const Machine& machine, const TileParams& asked, Gemm product,
             std::int32_t a, std::vector<RowGroup> groups) {
  product.a = build.all(a, product.a.rank);
  return grouped(build, machine, asked, std::move(product), std::move(groups));
}

Placement rows_of_tokens(const Problem& problem, int rank, const Slice& tokens) {
  RowMap rows;
  rows.world = problem.experts.topk;
  rows.len = rows.limit = tokens_of(problem, rank);
  rows.block = larger(rows.len, 1);
  return {tokens, placement::Matrix{rows}};
}

Placement choice_by_expert(const Problem& problem, int rank, std::int64_t choice, const TileGrid& grid,
                           const Slice& from) {
  const Routing& routing = *problem.routing;
  placement::Pools pools{{grid.positions()}, rank};
  pools.first = choice * problem.out_rows(rank);
  std::int64_t base = 0;
  for (int expert = 0; expert < routing.experts(); base += routing.count(rank, expert++))
    pools.bases.push_back(base + routing.count_before(rank, expert, pools.first));
  return {from, std::move(pools)};
}

Elementwise combine(const TileGrid& grid, const Slice& factors, const Slice& to) {
  Elementwise pass;
  pass.grid = grid;
  pass.factors = factors;
  pass.to = Builder::in_place(to);
  return pass;
}

}  // namespace shingle::planner
