// Well-formed: products whose own tiles are sums with the parts of other ranks.
#include <algorithm>
#include <variant>

#include "step.hpp"

namespace shingle::wellformed {
namespace {

/// Rows of tiles before row of tiles `m` that are padded rows of the rank. A tile has rows of one rank only.
std::int64_t own_before(const RowMap& rows, std::int32_t tile_rows, std::int32_t rank, std::int64_t m) {
  const std::int64_t tiles = rows.pitch / tile_rows, turn = rows.world * tiles;
  return m / turn * tiles + larger(smaller(m % turn - rank * tiles, tiles), 0);
}

}  // namespace

void StepCheck::sums(const Gemm& g) const {
  const Field field{"sums"};
  if (g.sums.from.empty())
    return require(g.sums == TileSums{}, field,
                   "stores sums of no parts; expected a part of each other rank");
  require(g.groups.empty() && g.live == Slice{}, field, "a grouped product has no sums");
  require(g.epilogue.activation != Activation::swiglu, field, "swiglu needs complete rows; a sum is a tile");
  const auto* const owners = std::get_if<placement::Owners>(&g.out.form);
  require(owners != nullptr, {"out"}, "own tiles are summed, so `out` stores to owners, not to {}",
          Placement::names[g.out.form.index()]);
  const RowMap& rows = owners->rows;
  require(rows.pitch > 0 && rows.pitch % g.grid.tile_rows == 0 && rows.base + rows.len <= rows.stride,
          {"out"}, "a tile of {} rows may have rows of two owners; expected a pitch of whole tiles, not {}",
          g.grid.tile_rows, rows.pitch);
  require(rows.without < 0, {"out"}, "leaves out shard {}, so own tiles cannot be told", rows.without);
  for (std::size_t i = 0; i < g.sums.from.size(); ++i) {
    const Placement& from = g.sums.from[i];
    const Field part{"sums.from", i};
    rows_in_place(part, from);
    own(part.at("slice"), from.slice);
    one_rank(part, from);
    placement(part, from, g.grid);
    require(is_floating(buffer(from.slice).dtype), part, "i32, which no product has");
  }
  require(!g.sums.to.empty(), {"sums.to"}, "no place for the sums");
  for (std::size_t i = 0; i < g.sums.to.size(); ++i) place_of_sums(g, i);
  for (std::size_t i = 0; i < g.gates.size(); ++i)
    if (g.gates[i].of_parts) parts_of_sums(g, rows, i);
}

/// All places of a sum hold the same rows in the same type, and each buffer of a rank at most once.
void StepCheck::place_of_sums(const Gemm& g, std::size_t index) const {
  const Placement &to = g.sums.to[index], &first = g.sums.to.front();
  const Field field{"sums.to", index};
  rows_in_place(field, to);
  placement(field, to, g.grid);
  store(field.at("slice"), to.slice);
  require(is_floating(buffer(to.slice).dtype), field, "i32, which no product has");
  require(buffer(to.slice).dtype == buffer(first.slice).dtype, field, "{}, but sums are rounded once, to {}",
          name(buffer(to.slice).dtype), name(buffer(first.slice).dtype));
  require(std::get<placement::Matrix>(to.form).rows == std::get<placement::Matrix>(first.form).rows, field,
          "other rows than in the first place");
  for (const Placement& from : g.sums.from)
    require(from.slice.buffer != to.slice.buffer, field, "sums are stored to '{}', where parts lie",
            buffer(to.slice).name);
  for (std::size_t i = 0; i < index; ++i) {
    if (g.sums.to[i].slice.buffer != to.slice.buffer) continue;
    const std::vector<std::int32_t> stored = ranks_of(g.sums.to[i], plan_.world());
    for (const std::int32_t rank : ranks_of(to, plan_.world()))
      require(std::ranges::find(stored, rank) == stored.end(), field, "stored to '{}' of rank {} twice",
              buffer(to.slice).name, rank);
  }
}

/// Parts and sums are rows of matrices.
void StepCheck::rows_in_place(const Field& field, const Placement& at) const {
  require(std::holds_alternative<placement::Matrix>(at.form), field, "{}; expected rows of a matrix",
          Placement::names[at.form.index()]);
}

/// Only tiles of the rank's own rows await parts.
void StepCheck::parts_of_sums(const Gemm& g, const RowMap& rows, std::size_t index) const {
  const TileGate& gate = g.gates[index];
  const auto own_tiles = [&](std::int64_t position) {
    return g.grid.sum_before(
        position,
        [&](std::int64_t first, std::int64_t last) {
          return own_before(rows, g.grid.tile_rows, rank_, last) -
                 own_before(rows, g.grid.tile_rows, rank_, first);
        },
        TileGrid::Count{});
  };
  std::int64_t begin = 0;
  for (std::size_t group = 0; group < gate.ends.size(); ++group) {
    const std::int64_t end = gate.ends[group];
    const std::int64_t others =
        g.grid.tiles_before(end) - g.grid.tiles_before(begin) - (own_tiles(end) - own_tiles(begin));
    require(gate.targets[group] == 0 || others == 0, {"gates", index, "targets"},
            "{} for group {}, which has {} tiles of other ranks' rows; expected 0, as these add no parts",
            gate.targets[group], group, others);
    begin = end;
  }
}

}  // namespace shingle::wellformed
