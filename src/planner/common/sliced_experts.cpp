#include "sliced_experts.hpp"

#include <algorithm>
#include <utility>

namespace shingle::planner {
namespace {

/// The slots of a source, in a slice that has those of all sources.
Slice slots_of(const Routing& routing, int source, Slice all) {
  all.row += routing.global_base(source);
  all.rows = routing.rows(source);
  return all;
}

}  // namespace

Placement sorted_rows(const Problem& problem, int source, std::int64_t first, const TileGrid& grid,
                      const Slice& sorted) {
  const Routing& routing = *problem.routing;
  placement::Pools pools{{}, source};
  pools.first = first;
  const auto add = [&](std::int64_t end, std::int64_t row) {
    pools.ends.push_back(end);
    for (int expert = 0; expert < routing.experts(); ++expert)
      pools.bases.push_back(routing.receive_base(expert, source) +
                            routing.count_before(source, expert, first + row));
  };
  const std::int64_t begin = grid.tile(0).m;
  if (begin > 0) add(grid.tiles_m() - begin, begin * grid.tile_rows);
  add(grid.positions(), 0);
  return {sorted, std::move(pools)};
}

TurnGroups groups_in_turn(const Routing& routing, const std::vector<TurnRows>& rows, std::int64_t unit,
                          TurnOf of) {
  std::vector<std::vector<RowGroup>> by_turn;
  auto run = rows.begin();  // that has the first row of the unit
  for (int expert = 0; expert < routing.experts(); ++expert) {
    const std::int64_t end = routing.receive_base(expert, routing.world());
    for (std::int64_t row = routing.receive_base(expert, 0); row < end; row += unit) {
      const std::int64_t count = smaller(unit, end - row);
      while (run->end <= row) ++run;
      std::int32_t turn = run->turn;
      for (auto at = run; at->end < row + count;) {
        const std::int64_t before = at->end;
        if ((++at)->end > before)
          turn = of == TurnOf::last ? larger(turn, at->turn) : smaller(turn, at->turn);
      }
      if (by_turn.size() <= static_cast<std::size_t>(turn))
        by_turn.resize(static_cast<std::size_t>(turn) + 1);
      auto& groups = by_turn[static_cast<std::size_t>(turn)];
      if (!groups.empty() && groups.back().weight == expert && groups.back().row + groups.back().rows == row)
        groups.back().rows += count;
      else
        groups.push_back({row, row, count, expert});
    }
  }
  TurnGroups all;
  for (std::size_t turn = 0; turn < by_turn.size(); ++turn)
    for (const RowGroup& group : by_turn[turn]) {
      all.groups.push_back(group);
      all.turns.push_back(static_cast<std::int32_t>(turn));
    }
  return all;
}

TurnGroups groups_in_turn(const Routing& routing, int first, std::int64_t unit, TurnOf of) {
  const int world = routing.world();
  std::vector<TurnRows> rows;
  for (int expert = 0; expert < routing.experts(); ++expert)
    for (int source = 0; source < world; ++source)
      rows.push_back({routing.receive_base(expert, source + 1), (source - first + world) % world});
  return groups_in_turn(routing, rows, unit, of);
}

TurnGroups slots_in_turn(const Builder& build, const Gemm& product, const std::vector<std::int32_t>& turns) {
  const Routing& routing = *build.problem().routing;
  const int rank = product.a.rank;
  std::vector<std::pair<std::int32_t, RowGroup>> in_turn;
  for (int expert = 0; expert < routing.experts(); ++expert)
    for (int source = 0; source < routing.world(); ++source) {
      const std::int64_t by_expert = routing.receive_base(expert, source),
                         by_source = routing.global_base(source) + expert * routing.capacity();
      in_turn.push_back({turns[static_cast<std::size_t>(source)],
                         {product.a.buffer == build.a ? by_expert : by_source,
                          product.out.slice.buffer == build.out ? by_expert : by_source, routing.capacity(),
                          expert, live_element(routing, rank, source, expert)}});
    }
  std::ranges::stable_sort(in_turn, {}, [](const auto& one) { return one.first; });
  TurnGroups all;
  for (const auto& [turn, group] : in_turn) {
    all.groups.push_back(group);
    all.turns.push_back(turn);
  }
  return all;
}

Elementwise sort_tokens(const Builder& build, const Slots* slots, int source, const Slice& tokens,
                        const Slice& sorted) {
  const Problem& p = build.problem();
  Elementwise pass;
  pass.grid = build.row_blocks(p.routing->rows(source), p.k);
  if (slots != nullptr) {
    pass.from.push_back(slots->tokens(sorted.rank, source, tokens));
    pass.to = Builder::in_place(slots_of(*p.routing, source, sorted));
    return pass;
  }
  pass.from.push_back(rows_of_tokens(p, source, tokens));
  pass.to = sorted_rows(p, source, 0, pass.grid, sorted);
  return pass;
}

Elementwise sort_choice(const Builder& build, int source, std::int64_t first, std::int64_t choice,
                        const Slice& tokens, const Slice& sorted) {
  const Problem& p = build.problem();
  Elementwise pass;
  pass.grid = build.row_blocks(tokens.rows, p.k);
  pass.from.push_back(Builder::in_place(tokens));
  pass.to = sorted_rows(p, source, choice * tokens_of(p, source) + first, pass.grid, sorted);
  return pass;
}

Elementwise combine_sorted(const Builder& build, const Slots* slots, int source, const Slice& products,
                           const Slice& factors, const Slice& to, std::int64_t first) {
  const Problem& p = build.problem();
  if (slots != nullptr)
    return slots->combine(products.rank, source, slots_of(*p.routing, source, products), factors, to);
  Elementwise pass = combine(build.row_blocks(factors.rows, p.n), factors, to);
  for (std::int64_t choice = 0; choice < p.experts.topk; ++choice)
    pass.from.push_back(sorted_rows(p, source, choice * tokens_of(p, source) + first, pass.grid, products));
  return pass;
}

std::vector<std::int32_t> turns_of(const TurnProduct& product, const std::vector<ExpertRows>& rows) {
  std::vector<std::int32_t> turns;
  for (std::size_t i = product.turns.size(); i-- > 0;) {
    const RowGroup& group = product.gemm.groups[i];
    const auto found = std::ranges::upper_bound(rows, group.row, {}, &ExpertRows::end);
    const bool has = found != rows.end() && found->first < group.row + group.rows;
    if (has && (turns.empty() || turns.back() != product.turns[i])) turns.push_back(product.turns[i]);
  }
  return turns;
}

}  // namespace shingle::planner
