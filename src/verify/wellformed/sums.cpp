// Well-formed: products whose own tiles are sums with the parts of other ranks.
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
  for (std::size_t i = 0; i < g.sums.from.size(); ++i) {
    const Placement& from = g.sums.from[i];
    const Field part{"sums.from", i};
    rows_in_place(part, from);
    own(part.at("slice"), from.slice);
    one_rank(part, from);
    placement(part, from, g.grid);
    require(is_floating(buffer(from.slice).dtype), part, "i32, which no product has");
    require(from.slice.buffer != g.sums.to.slice.buffer, part, "sums are stored to '{}', where parts lie",
            buffer(from.slice).name);
  }
  rows_in_place({"sums.to"}, g.sums.to);
  placement({"sums.to"}, g.sums.to, g.grid);
  store({"sums.to"}, g.sums.to.slice);
  require(is_floating(buffer(g.sums.to.slice).dtype), {"sums.to"}, "i32, which no product has");
  for (std::size_t i = 0; i < g.gates.size(); ++i)
    if (g.gates[i].of_parts) parts_of_sums(g, rows, i);
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
