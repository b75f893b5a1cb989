#include "experts.hpp"

#include <utility>

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

/// Height of the tiles of groups: half of `whole` if whole tiles would be much emptier.
std::int32_t height_for(const std::vector<RowGroup>& groups, std::int32_t whole) {
  constexpr double slower = 1.2;  // a row of lower tiles, on GPUs
  const std::int32_t half = whole / 2;
  if (whole % 2 != 0 || half < 64) return whole;
  const auto lower = static_cast<double>(padded_rows(groups, half, 1));
  return slower * lower < static_cast<double>(padded_rows(groups, whole, 1)) ? half : whole;
}

/// Rows of a source, from `first` on, among the rows by expert of all sources.
Placement sorted_rows(const Problem& problem, int source, std::int64_t first, const TileGrid& grid,
                      const Slice& sorted) {
  const Routing& routing = *problem.routing;
  placement::Pools pools{{grid.positions()}, source};
  pools.first = first;
  for (int expert = 0; expert < routing.experts(); ++expert)
    pools.bases.push_back(routing.receive_base(expert, source) + routing.count_before(source, expert, first));
  return {sorted, std::move(pools)};
}

}  // namespace

std::int64_t tokens_of(const Problem& problem, int rank) {
  return problem.routing->rows(rank) / problem.choices();
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
  if (asked.rows == 0) tile.rows = height_for(groups, tile.rows);
  return build.grouped(std::move(product), std::move(groups), tile, order_of_groups(machine, asked.order));
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

TurnGroups groups_in_turn(const Routing& routing, int first, std::int64_t unit, TurnOf of) {
  const int world = routing.world();
  std::vector<std::vector<RowGroup>> by_turn(static_cast<std::size_t>(world));
  for (int expert = 0; expert < routing.experts(); ++expert) {
    const std::int64_t end = routing.receive_base(expert, world);
    int source = 0;  // of the first row of the unit
    for (std::int64_t row = routing.receive_base(expert, 0); row < end; row += unit) {
      const std::int64_t rows = smaller(unit, end - row);
      while (routing.receive_base(expert, source + 1) <= row) ++source;
      int turn = of == TurnOf::last ? 0 : world;
      for (int s = source; s < world && routing.receive_base(expert, s) < row + rows; ++s) {
        if (routing.count(s, expert) == 0) continue;
        const int at = (s - first + world) % world;
        turn = of == TurnOf::last ? larger(turn, at) : smaller(turn, at);
      }
      auto& groups = by_turn[static_cast<std::size_t>(turn)];
      if (!groups.empty() && groups.back().weight == expert && groups.back().row + groups.back().rows == row)
        groups.back().rows += rows;
      else
        groups.push_back({row, row, rows, expert});
    }
  }
  TurnGroups all;
  for (int turn = 0; turn < world; ++turn)
    for (const RowGroup& group : by_turn[static_cast<std::size_t>(turn)]) {
      all.groups.push_back(group);
      all.turns.push_back(turn);
    }
  return all;
}

Elementwise sort_tokens(const Builder& build, int source, const Slice& tokens, const Slice& sorted) {
  const Problem& p = build.problem();
  Elementwise pass;
  pass.grid = build.row_blocks(p.routing->rows(source), p.k);
  pass.from.push_back(rows_of_tokens(p, source, tokens));
  pass.to = sorted_rows(p, source, 0, pass.grid, sorted);
  return pass;
}

Elementwise combine_sorted(const Builder& build, int source, const Slice& products, const Slice& factors,
                           const Slice& to) {
  Elementwise pass = combine(build.row_blocks(factors.rows, build.problem().n), factors, to);
  for (std::int64_t choice = 0; choice < build.problem().experts.topk; ++choice)
    pass.from.push_back(sorted_rows(build.problem(), source, choice * factors.rows, pass.grid, products));
  return pass;
}

}  // namespace shingle::planner
