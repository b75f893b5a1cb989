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
      const int source = (first + i) % routing.world(), expert = rank * experts + weight;
      if (const std::int64_t rows = routing.count(source, expert); rows > 0)
        visit(RowGroup{routing.receive_base(expert, source), routing.receive_base(expert, source), rows,
                       weight, live_element(routing, rank, source, weight)});
    }
}

}  // namespace

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

std::vector<RowGroup> groups_from(const Routing& routing, int rank, int first) {
  std::vector<RowGroup> groups;
  for_each_group(routing, rank, first, [&](const RowGroup& group) { groups.push_back(group); });
  return groups;
}

SourceRuns runs_by_source(const Gemm& product, const Routing& routing, int rank) {
  std::vector<std::int32_t> sources;
  for (const RowGroup& group : product.groups)
    sources.push_back(group.rows == 0 ? rank : routing.received_row(rank, group.row).source);
  SourceRuns runs;
  for (std::int64_t position = 0; position < product.grid.positions(); ++position) {
    const ProductTile tile = product_tile(product, product.grid.tile(position));
    const bool phantom = tile.group == nullptr || tile.rect.cols == 0;
    const std::int32_t source =
        phantom ? -1 : sources[static_cast<std::size_t>(tile.group - product.groups.data())];
    if (!runs.ends.empty() && (phantom || runs.sources.back() == source)) {
      runs.ends.back() = position + 1;
    } else {
      runs.ends.push_back(position + 1);
      runs.sources.push_back(larger(source, 0));
    }
  }
  return runs;
}

TileOrder order_of_groups(const Machine& machine, const TileOrder& asked) {
  if (asked != TileOrder{}) return asked;
  return {Raster::along_n, machine.order.swizzle, machine.order.cluster_m, 1, 0};
}

Gemm grouped(const Builder& build, const Machine& machine, const TileParams& asked, Gemm product,
             std::int32_t a, std::vector<RowGroup> groups) {
  const int rank = product.a.rank;
  const TileSize tile = tile_size(with_tiles_of(product.epilogue, machine), asked);
  return build.grouped(std::move(product), build.all(a, rank), std::move(groups), tile,
                       order_of_groups(machine, asked.order));
}

Placement rows_of_tokens(const Problem& problem, int rank, const Slice& tokens) {
  RowMap rows;
  rows.world = problem.experts.topk;
  rows.len = rows.limit = problem.routing->rows(rank) / problem.experts.topk;
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

Elementwise combine(const Builder& build, int rank) {
  const Problem& p = build.problem();
  Elementwise pass;
  pass.grid = build.row_blocks(p.out_rows(rank), p.n);
  pass.factors = build.all(build.topk_weights, rank);
  pass.to = Builder::in_place(build.all(build.out, rank));
  return pass;
}

}  // namespace shingle::planner
