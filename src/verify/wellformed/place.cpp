// Well-formed: counters, slices, grids and placements of a step, for all tiles at once in closed form.
#include "step.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/plan/placement.hpp"

namespace shingle::wellformed {

// ------------------------------------------------------------------------------------------------
// counters and slices

void StepCheck::counter(const CounterRef& c) const {
  index(c.counter, plan_.counters, {"counter"}, "counters");
  index(c.rank, plan_.ranks, {"counter", Field::npos, "rank"}, "ranks");
  const auto& entries =
      plan_.counters[static_cast<std::size_t>(c.counter)].growth[static_cast<std::size_t>(c.rank)];
  require(c.entry >= 0 && c.entry < static_cast<std::int64_t>(entries.size()),
          {"counter", Field::npos, "entry"}, "{} is none of the {} on rank {}", c.entry, entries.size(),
          c.rank);
}

void StepCheck::slice(const Field& field, const Slice& s) const {
  index(s.buffer, plan_.buffers, field.at("buffer"), "buffers");
  index(s.rank, plan_.ranks, field.at("rank"), "ranks");
  const Buffer& b = buffer(s);
  const std::int64_t rows = b.rows[static_cast<std::size_t>(s.rank)];
  require(s.row >= 0 && s.rows >= 0 && s.row <= rows && s.rows <= rows - s.row, field,
          "{} rows from {} on are not in '{}', which has {} on rank {}", s.rows, s.row, b.name, rows, s.rank);
  require(s.col >= 0 && s.cols >= 0 && s.col <= b.cols && s.cols <= b.cols - s.col, field,
          "{} columns from {} on are not in '{}', which has {}", s.cols, s.col, b.name, b.cols);
}

void StepCheck::own(const Field& field, const Slice& s) const {
  slice(field, s);
  require(s.rank == rank_, field, "in the memory of rank {}, not the step's own", s.rank);
}

void StepCheck::store(const Field& field, const Slice& s) const {
  slice(field, s);
  require(!is_input(buffer(s).role), field, "stores to '{}', an input of the user", buffer(s).name);
}

void StepCheck::contiguous(const Field& field, const Slice& s) const {
  own(field, s);
  require(s.col == 0 && s.cols == buffer(s).cols, field,
          "columns {} to {} are not whole rows of '{}', which has {}", s.col, s.col + s.cols, buffer(s).name,
          buffer(s).cols);
  of_all_tokens(field, s);
}

void StepCheck::copy(const Field& from_field, const Slice& from, const Field& to_field,
                     const Slice& to) const {
  slice(from_field, from);
  store(to_field, to);
  require(from.rows == to.rows && from.cols == to.cols, to_field, "{}x{}, but {} is {}x{}", to.rows, to.cols,
          from_field.text(), from.rows, from.cols);
  require(buffer(from).dtype == buffer(to).dtype, to_field, "{}, but {} is {}", name(buffer(to).dtype),
          from_field.text(), name(buffer(from).dtype));
  require(!overlap(from, to), to_field, "overlaps {}", from_field.text());
  of_all_tokens(from_field, from);
  of_all_tokens(to_field, to);
}

/// A row vector: required if `wanted`, and forbidden otherwise.
void StepCheck::vector(const Field& field, const Slice& s, bool wanted, std::int64_t cols) const {
  if (!wanted) return require(s == Slice{}, field, "is given, but not used");
  own(field, s);
  require(s.rows == 1 && s.cols == cols, field, "{}x{}, not 1x{}", s.rows, s.cols, cols);
}

// ------------------------------------------------------------------------------------------------
// grids and placements

void StepCheck::grid(const TileGrid& g) const {
  const Field field{"grid"};
  require(g.rows >= 0 && g.cols >= 0 && g.rows <= 2 * max_extent && g.cols <= 2 * max_extent, field,
          "{}x{}; expected 0x0 to {}x{}", g.rows, g.cols, 2 * max_extent, 2 * max_extent);
  require(g.tile_rows >= 1 && g.tile_cols >= 1, field, "tiles of {}x{}; expected at least 1x1", g.tile_rows,
          g.tile_cols);
  require(g.loop_count >= 0 && g.loop_count <= max_loops, field, "{} loops, at most {}", g.loop_count,
          max_loops);
  std::int64_t positions = 1, axis[2] = {1, 1};
  for (int i = 0; i < g.loop_count; ++i) {
    const Loop& loop = g.loops[i];
    require(loop.extent >= 1, field, "loop {} has extent {}; expected at least 1", i, loop.extent);
    require(loop.rotation >= 0 && loop.rotation < loop.extent, field, "loop {} starts at {}, outside [0, {})",
            i, loop.rotation, loop.extent);
    positions *= loop.extent;
    axis[static_cast<int>(loop.axis)] *= loop.extent;
    require(positions <= max_positions, field, "more than {} positions", max_positions);
  }
  if (g.rows == 0 || g.cols == 0) return;
  require(axis[0] >= g.tiles_m() && axis[1] >= g.tiles_n(), field, "the loops reach {}x{} of {}x{} tiles",
          axis[0], axis[1], g.tiles_m(), g.tiles_n());
}

void StepCheck::groups(const Field& field, const std::vector<std::int64_t>& ends, const TileGrid& g) const {
  std::int64_t before = 0;
  for (const std::int64_t end : ends) {
    require(end >= before, field, "{} after {}: groups end in ascending order", end, before);
    before = end;
  }
  require(before == g.positions(), field, "the last group ends at {}, but the grid has {} positions", before,
          g.positions());
}

void StepCheck::row_map(const Field& field, const RowMap& map, std::int64_t virtual_rows,
                        std::int64_t rows) const {
  require(map.world >= 1 && map.world <= max_runs, field, "world {} is outside [1, {}]", map.world, max_runs);
  require(map.block >= 1 && map.block <= max_rows, field, "block {} is outside [1, {}]", map.block, max_rows);
  for (const std::int64_t value : {map.len, map.stride, map.base})
    require(value >= 0 && value <= max_rows, field, "{} is outside [0, {}]", value, max_rows);
  require(map.limit >= 0, field, "limit {} is negative", map.limit);
  require(map.pitch == 0 || (map.pitch >= smaller(map.block, map.len) && map.pitch <= max_rows), field,
          "{} rows of a rank do not fit the pitch of {}", smaller(map.block, map.len), map.pitch);
  require(map.pitch <= 0 || ceil_div(map.len, map.block) <= max_rows / map.pitch, field,
          "{} blocks of {} virtual rows are too many", ceil_div(map.len, map.block), map.pitch);
  require(virtual_rows <= map.rows(), field, "maps {} rows, but the grid has {}", map.rows(), virtual_rows);
  require(map.without >= -1 && map.without <= map.world, field, "leaves out shard {} of {}", map.without,
          map.world + 1);
  if (virtual_rows == 0) return;
  const std::int64_t end =
      map.shard_at(map.world - 1) + (map.world == 1 ? smaller(virtual_rows, map.len) : map.len);
  require(smaller(end, map.limit) <= rows, field, "reaches row {} of {}", smaller(end, map.limit), rows);
}

/// `wide`: number of columns of every piece; 0: the columns of its tile.
void StepCheck::placement(const Field& field, const Placement& p, const TileGrid& g,
                          std::int64_t wide) const {
  slice(field.at("slice"), p.slice);
  if (g.tiles() == 0) return;
  const auto ranks = replicas(p);
  std::vector<bool> seen(ranks.empty() ? 0 : plan_.ranks.size());
  for (const std::int32_t rank : ranks) {
    index(rank, plan_.ranks, field.at("ranks"), "ranks");
    require(!seen[static_cast<std::size_t>(rank)], field.at("ranks"), "rank {} twice", rank);
    seen[static_cast<std::size_t>(rank)] = true;
    reaches(field.at("ranks"), p.slice, rank, p.slice.rows);
  }
  if (wide == 0) wide = stacks_tiles(p) ? smaller(g.tile_cols, g.cols) : g.cols;
  require(p.slice.cols >= wide, field.at("slice"), "{} columns, but {} are placed", p.slice.cols, wide);
  std::visit([&](const auto& form) { placed(field, p.slice, form, g); }, p.form);
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Matrix& p,
                       const TileGrid& g) const {
  row_map(field.at("rows"), p.rows, g.rows, s.rows);
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Slots& p,
                       const TileGrid& g) const {
  if (p.bases.empty()) return stacked(field, s, g);
  groups(field.at("ends"), p.ends, g);
  require(p.bases.size() == p.ends.size(), field.at("bases"), "{} of them, but there are {} groups",
          p.bases.size(), p.ends.size());
  std::int64_t before = 0;
  for (std::size_t group = 0; group < p.ends.size(); ++group) {
    const std::int64_t until = g.rows_before(p.ends[group]), base = p.bases[group];
    require(base >= 0 && until - before <= s.rows - base, field.at("bases"),
            "group {} has {} rows from {} on, but the slice ends at {}", group, until - before, base, s.rows);
    before = until;
  }
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Subtiles& p,
                       const TileGrid& g) const {
  groups(field.at("ends"), p.ends, g);
  require(p.parts >= 1 && g.tile_rows % p.parts == 0 && g.rows % g.tile_rows % p.parts == 0,
          field.at("parts"), "tiles of {} rows (the last of {}) have no {} equal parts", g.tile_rows,
          g.rows % g.tile_rows, p.parts);
  stacked(field, s, g);
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Pools& p,
                       const TileGrid& g) const {
  source(field, p.source, p.dest, p.first, g);
  groups(field.at("ends"), p.ends, g);
  const Routing& routing = *plan_.routing();
  const int first = p.dest < 0 ? 0 : p.dest, count = p.dest < 0 ? routing.experts() : 1;
  const std::size_t wanted = p.ends.size() * static_cast<std::size_t>(count);
  require(p.bases.size() == wanted, field.at("bases"), "{} of them, but there are {} pools", p.bases.size(),
          wanted);
  for (int d = 0; d < count; ++d) {
    std::int64_t before = routed_rows_before(routing, g, p.source, first + d, 0, p.first);
    for (std::size_t group = 0; group < p.ends.size(); ++group) {
      const std::int64_t until = routed_rows_before(routing, g, p.source, first + d, p.ends[group], p.first);
      const std::int64_t base =
          p.bases[group * static_cast<std::size_t>(count) + static_cast<std::size_t>(d)];
      const bool empty = until == before;
      require(base >= 0 && (empty || until - before <= s.rows - base), field.at("bases"),
              "the pool of group {} for destination {} has {} rows from {} on, but the slice ends at {}",
              group, first + d, until - before, base, s.rows);
      before = until;
    }
  }
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Routed& p,
                       const TileGrid& g) const {
  source(field, p.source, p.dest, 0, g);
  const Routing& routing = *plan_.routing();
  const int all = routing.experts();
  const std::size_t wanted = p.dest < 0 ? static_cast<std::size_t>(all) : 1;
  require(p.bases.size() == wanted, field.at("bases"), "{} of them, not {}", p.bases.size(), wanted);
  for (int d = p.dest < 0 ? 0 : p.dest; d < (p.dest < 0 ? all : p.dest + 1); ++d) {
    if (p.one_rank && routing.rank_of(d) != s.rank) continue;
    const std::int64_t base = p.bases[p.dest < 0 ? static_cast<std::size_t>(d) : 0];
    const std::int64_t rows = routing.count_before(p.source, d, g.rows);
    const std::int64_t have =
        p.dest < 0 ? buffer(s).rows[static_cast<std::size_t>(routing.rank_of(d))] - s.row : s.rows;
    require(base >= 0 && (rows == 0 || rows <= have - base), field.at("bases"),
            "{} rows from {} on, but the slice ends at {}", rows, base, have);
  }
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Owners& p,
                       const TileGrid& g) const {
  require(!is_symmetric(plan_), field, "rows go to all ranks, but some stand for all");
  require(plan_.world() <= max_world, field, "rows go to all of {} ranks, but at most to {}", plan_.world(),
          max_world);
  require(p.rows.stride >= 1, field.at("rows"), "a stride of {}; expected at least 1", p.rows.stride);
  const std::int64_t all = p.rows.stride * plan_.world();
  row_map(field.at("rows"), p.rows, g.rows, all);
  const std::int64_t rows = smaller(p.rows.limit, all);
  for (int r = 0; r < plan_.world(); ++r)
    reaches(field.at("slice"), s, r, smaller(larger(rows - r * p.rows.stride, 0), p.rows.stride));
}

void StepCheck::placed(const Field& field, const Slice& s, const placement::Returned& p,
                       const TileGrid& g) const {
  require(plan_.routing() != nullptr, field, "the problem has no routing");
  index(p.rank, plan_.ranks, field.at("rank"), "ranks");
  const Routing& routing = *plan_.routing();
  require(routing.world() == plan_.world(), field, "rows return to no rank: all ranks have the tokens");
  require(g.rows <= routing.received(p.rank), field, "{} rows, but rank {} receives {}", g.rows, p.rank,
          routing.received(p.rank));
  for (int source = 0; source < plan_.world(); ++source)
    reaches(field.at("slice"), s, source, routing.rows(source));
}

/// All tiles fit the slice one below the other.
void StepCheck::stacked(const Field& field, const Slice& s, const TileGrid& g) const {
  const std::int64_t rows = g.rows * g.tiles_n();
  require(rows <= s.rows, field.at("slice"), "{} rows, but the tiles have {}", s.rows, rows);
}

/// A step reads only from one rank's memory.
void StepCheck::one_rank(const Field& field, const Placement& p) const {
  require(ranks_of(p, plan_.world()).size() == 1, field, "spreads over several ranks");
}

/// The slice's buffer has `rows` rows on `rank`, counted from the first row of the slice.
void StepCheck::reaches(const Field& field, const Slice& s, int rank, std::int64_t rows) const {
  const Buffer& b = buffer(s);
  const std::int64_t have = b.rows[static_cast<std::size_t>(rank)];
  require(rows == 0 || (s.row <= have && rows <= have - s.row), field,
          "{} rows from {} on are not in '{}', which has {} on rank {}", rows, s.row, b.name, have, rank);
}

/// The problem's routing has the grid's rows on `source`, from row `first` on; `dest` is a destination, or -1
/// for all.
void StepCheck::source(const Field& field, std::int32_t source, std::int32_t dest, std::int64_t first,
                       const TileGrid& g) const {
  require(plan_.routing() != nullptr, field, "the problem has no routing");
  const Routing& routing = *plan_.routing();
  index(source, plan_.ranks, field.at("source"), "ranks");
  require(source < routing.world(), field.at("source"), "{}, but the routing has one source for all ranks",
          source);
  require(dest >= -1 && dest < routing.experts(), field.at("dest"), "{} is none of the {} destinations", dest,
          routing.experts());
  const std::int64_t rows = routing.rows(source);
  require(first >= 0 && first <= rows && g.rows <= rows - first, field,
          "{} rows{}, but rank {} has {} to send", g.rows,
          first == 0 ? "" : fmt::format(" from {} on", first), source, rows);
}

}  // namespace shingle::wellformed
