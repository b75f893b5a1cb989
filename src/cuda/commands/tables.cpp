#include "tables.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "shingle/plan/placement.hpp"

namespace shingle::cuda {
namespace {

/// First row of the slice that the grid covers if all its rows are contiguous in one buffer.
std::optional<std::int64_t> contiguous_from(const Placement& at, const Tiling& tiling) {
  const auto* const matrix = std::get_if<placement::Matrix>(&at.form);
  if (matrix == nullptr || !matrix->ranks.empty() || tiling.parts != 1 || tiling.grouped != nullptr)
    return std::nullopt;
  const RowMap& rows = matrix->rows;
  const std::int64_t first = rows.shard_at(0);
  if (rows.world != 1 || rows.pitch != 0 || first + tiling.grid.rows > rows.limit) return std::nullopt;
  return first;
}

/// Address of every row of a tile at every destination; null if the row has none there.
class RowAddresses {
 public:
  RowAddresses(const Tables& tables, const Placement& at, const Tiling& tiling)
      : tables_(tables), at_(at), tiling_(tiling), dests_(std::max<std::size_t>(replicas(at).size(), 1)) {}

  std::size_t dests() const { return dests_; }

  std::vector<char*> of(std::int64_t position) const {
    std::vector<char*> rows(static_cast<std::size_t>(tiling_.height) * dests_, nullptr);
    std::vector<std::size_t> found(static_cast<std::size_t>(tiling_.height), 0);
    const TileRect rect = tiling_.rect(tiling_.tile(position));
    const std::int64_t height = rect.rows;
    const std::int64_t row_bytes = tables_.memory.row_bytes(at_.slice.buffer);
    const Buffer& buffer = tables_.plan.buffers[static_cast<std::size_t>(at_.slice.buffer)];
    for_each_piece(at_, tiling_.grid, tables_.plan.routing(), position, rect, [&](const Piece& piece) {
      char* const first = tables_.memory.buffer(at_.slice.buffer, piece.rank, tables_.parity).at +
                          piece.row * row_bytes +
                          piece.col * static_cast<std::int64_t>(size_bytes(buffer.dtype));
      for (std::int64_t i = 0; i < piece.rows; ++i) {
        const auto row = static_cast<std::size_t>(tiling_.kernel_row(piece.tile_row + i, height));
        rows[row * dests_ + found[row]++] = first + i * row_bytes;
      }
    });
    return rows;
  }

 private:
  const Tables& tables_;
  const Placement& at_;
  const Tiling& tiling_;
  std::size_t dests_;
};

/// First byte of a buffer on each rank, looked up once.
class Bases {
 public:
  Bases(const Tables& tables, std::int32_t buffer)
      : tables_(tables), buffer_(buffer), of_rank_(tables.plan.ranks.size(), nullptr) {}

  char* of(std::int32_t rank) {
    char*& base = of_rank_[static_cast<std::size_t>(rank)];
    if (base == nullptr) base = tables_.memory.buffer(buffer_, rank, tables_.parity).at;
    return base;
  }

 private:
  const Tables& tables_;
  std::int32_t buffer_;
  std::vector<char*> of_rank_;  // null: not looked up, or a matrix that comes with each call
};

/// The kernel's rows [row, row + rows) of a tile, which are contiguous at a destination.
struct TileRun {
  std::int64_t row = 0, rows = 0;
  char* at = nullptr;
  bool ends_part = false;  ///< no row of the tile follows before the kernel's next part
};

/// The runs of a tile, in the order of their pieces, appended to `runs`. Runs that continue each other are
/// one, unless another part of the tile begins.
void add_tile_runs(const Tables& tables, const Placement& at, const Tiling& tiling, std::int64_t position,
                   Bases& bases, std::vector<TileRun>& runs) {
  const std::size_t begin = runs.size();
  const std::int64_t row_bytes = tables.memory.row_bytes(at.slice.buffer);
  const auto element = static_cast<std::int64_t>(
      size_bytes(tables.plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype));
  const TileRect rect = tiling.rect(tiling.tile(position));
  const std::int64_t height = rect.rows, part = ceil_div(height, tiling.parts);
  const bool padded = tiling.pads(rect);
  for_each_piece(at, tiling.grid, tables.plan.routing(), position, rect, [&](const Piece& piece) {
    char* first = bases.of(piece.rank) + piece.row * row_bytes + piece.col * element;
    const std::int64_t end = piece.tile_row + piece.rows;
    for (std::int64_t row = piece.tile_row; row < end;) {
      const std::int64_t part_end = std::min((row / part + 1) * part, height);
      const std::int64_t rows = std::min(end, part_end) - row, at_row = tiling.kernel_row(row, height);
      const bool ends_part = row + rows == part_end && !padded;
      TileRun* const last = runs.size() == begin ? nullptr : &runs.back();
      if (last && !last->ends_part && last->row + last->rows == at_row &&
          last->at + last->rows * row_bytes == first)
        last->rows += rows, last->ends_part = ends_part;
      else
        runs.push_back({at_row, rows, first, ends_part});
      row += rows, first += rows * row_bytes;
    }
  });
}

/// Addresses of `piece` rows at a time of some tiles, at each destination.
struct PieceTable {
  std::vector<char*> entries;
  std::int64_t piece = 0;
  std::size_t dests = 1;

  /// Makes pieces of `rows` rows, a divisor, and adds destinations without addresses.
  void cut(std::int64_t rows, std::size_t wanted, std::int64_t row_bytes) {
    std::vector<char*> finer;
    for (std::size_t first = 0; first < entries.size(); first += dests)
      for (std::int64_t row = 0; row < piece; row += rows)
        for (std::size_t d = 0; d < wanted; ++d) {
          char* const at = d < dests ? entries[first + d] : nullptr;
          finer.push_back(at == nullptr ? nullptr : at + row * row_bytes);
        }
    entries = std::move(finer), piece = rows, dests = wanted;
  }
  /// Adds the destinations of another table of the same tiles behind its own.
  void join(PieceTable other, std::int64_t row_bytes) {
    const std::int64_t common = std::gcd(piece, other.piece);
    cut(common, dests, row_bytes), other.cut(common, other.dests, row_bytes);
    std::vector<char*> joined;
    for (std::size_t own = 0, more = 0; own < entries.size(); own += dests, more += other.dests) {
      const auto add = [&](const PieceTable& of, std::size_t first) {
        const auto begin = of.entries.begin() + static_cast<std::ptrdiff_t>(first);
        joined.insert(joined.end(), begin, begin + static_cast<std::ptrdiff_t>(of.dests));
      };
      add(*this, own), add(other, more);
    }
    entries = std::move(joined), dests += other.dests;
  }
  void put(TableMemory& memory, std::int64_t height, Route& route) const {
    route.dests = static_cast<std::int32_t>(dests);
    route.table = memory.put(entries);
    route.piece_rows = static_cast<std::int32_t>(piece);
    route.pieces = static_cast<std::int32_t>(height / piece);
  }
};

/// Table of a route whose tiles are cut into few runs: much faster than by single rows. Nothing if a tile has
/// more runs than `most_runs`, or if the tiles have no common piece.
std::optional<PieceTable> table_of_runs(const Tables& tables, const Placement& at, const Tiling& tiling,
                                        const std::vector<std::int64_t>& positions, std::size_t dests) {
  constexpr std::size_t most_runs = 16;
  const std::int64_t row_bytes = tables.memory.row_bytes(at.slice.buffer);
  std::vector<TileRun> runs;
  std::vector<std::size_t> ends;  // by tile
  std::int64_t piece = tiling.height;
  Bases bases(tables, at.slice.buffer);
  for (const std::int64_t position : positions) {
    const std::size_t begin = runs.size();
    add_tile_runs(tables, at, tiling, position, bases, runs);
    if (runs.size() - begin > most_runs * dests) return std::nullopt;
    for (std::size_t i = begin; i < runs.size(); ++i) {
      piece = std::gcd(piece, runs[i].row);
      // No row of the tile follows the last run of a part in its piece.
      if (!runs[i].ends_part) piece = std::gcd(piece, runs[i].rows);
    }
    ends.push_back(runs.size());
  }
  const auto pieces = static_cast<std::size_t>(tiling.height / piece);
  PieceTable table{std::vector<char*>(ends.size() * pieces * dests, nullptr), piece, dests};
  std::vector<std::size_t> found(pieces);
  for (std::size_t t = 0, i = 0; t < ends.size(); ++t) {
    std::ranges::fill(found, std::size_t{0});
    for (; i < ends[t]; ++i)
      for (std::int64_t row = 0; row < runs[i].rows; row += piece) {
        const auto at_piece = static_cast<std::size_t>((runs[i].row + row) / piece);
        if (found[at_piece] == dests) return std::nullopt;
        table.entries[(t * pieces + at_piece) * dests + found[at_piece]++] = runs[i].at + row * row_bytes;
      }
  }
  return table;
}

/// True if, at every destination, the existing rows of each block of `piece` rows continue the block's first
/// row.
bool cut_by(std::size_t piece, const std::vector<std::vector<char*>>& tiles, std::size_t dests,
            std::int64_t row_bytes) {
  for (const auto& rows : tiles)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t row = i / dests, first = row / piece * piece;
      if (rows[i] == nullptr) continue;
      const char* begin = rows[first * dests + i % dests];
      if (begin == nullptr || begin + static_cast<std::int64_t>(row - first) * row_bytes != rows[i])
        return false;
    }
  return true;
}

/// True if a missing row would be taken for an existing one because other rows of its piece exist.
bool hides_gaps(std::size_t piece, const std::vector<std::vector<char*>>& tiles, std::size_t dests,
                const std::vector<std::vector<bool>>& exist) {
  for (std::size_t t = 0; t < tiles.size(); ++t)
    for (std::size_t i = 0; i < tiles[t].size(); ++i) {
      const std::size_t row = i / dests;
      if (tiles[t][i] == nullptr && exist[t][row] &&
          tiles[t][row / piece * piece * dests + i % dests] != nullptr)
        return true;
    }
  return false;
}

/// Table of the rows of some tiles, in their order.
PieceTable pieces_of(const Tables& tables, const Placement& at, const Tiling& tiling,
                     const std::vector<std::int64_t>& entries) {
  const RowAddresses addresses(tables, at, tiling);
  const std::size_t dests = addresses.dests(), height = static_cast<std::size_t>(tiling.height);
  if (auto table = table_of_runs(tables, at, tiling, entries, dests)) return std::move(*table);
  const std::int64_t row_bytes = tables.memory.row_bytes(at.slice.buffer);
  std::vector<std::vector<char*>> tiles;
  std::vector<std::vector<bool>> exist;
  for (const std::int64_t position : entries) {
    tiles.push_back(addresses.of(position));
    auto& rows = exist.emplace_back(height, false);
    const TileRect rect = tiling.rect(tiling.tile(position));
    const std::int64_t tall = tiling.pads(rect) ? tiling.height : rect.rows;
    for (std::int64_t v = 0; v < tall; ++v) rows[static_cast<std::size_t>(tiling.kernel_row(v, tall))] = true;
  }
  std::size_t piece = height;
  while (piece > 1 && (height % piece != 0 || !cut_by(piece, tiles, dests, row_bytes) ||
                       hides_gaps(piece, tiles, dests, exist)))
    --piece;
  PieceTable table{{}, static_cast<std::int64_t>(piece), dests};
  for (const auto& rows : tiles)
    for (std::size_t row = 0; row < height; row += piece)
      table.entries.insert(table.entries.end(), rows.begin() + static_cast<std::ptrdiff_t>(row * dests),
                           rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * dests));
  return table;
}

/// A position in each row of tiles: its tiles share their row addresses.
std::vector<std::int64_t> rows_of_tiles(const TileGrid& grid) {
  std::vector<std::int64_t> positions;
  for (std::int64_t m = 0; m < grid.tiles_m(); ++m) positions.push_back(grid.linear({m, 0}));
  return positions;
}

/// The group of positions that come in ascending order, each in some group.
struct Group {
  std::int64_t number = -1;
  std::int64_t begin = 0, end = 0;  ///< its positions

  /// True if a position is in another group than the last one.
  bool moves_to(const std::vector<std::int64_t>& ends, std::int64_t position) {
    if (number >= 0 && begin <= position && position < end) return false;
    number = group_of(ends, position);
    begin = number == 0 ? 0 : ends[static_cast<std::size_t>(number) - 1];
    end = ends[static_cast<std::size_t>(number)];
    return true;
  }
};

}  // namespace

std::vector<std::int64_t> all_positions(const TileGrid& grid) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(grid.positions()));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

std::vector<TileAt> order_of(const Tiling& tiling, bool marked) {
  std::vector<TileAt> order;
  order.reserve(tiling.positions.size());
  for (const std::int64_t position : tiling.positions) {
    const Tile tile = tiling.tile(position);
    order.push_back(marked && tiling.grid.phantom(tile)
                        ? TileAt{-1, -1}
                        : TileAt{static_cast<std::int32_t>(tile.m), static_cast<std::int32_t>(tile.n)});
  }
  return order;
}

Route Tables::route(const Placement& at, const Tiling& tiling) const {
  Route route;
  route.row_bytes = memory.row_bytes(at.slice.buffer);
  route.matrix = static_cast<std::uint8_t>(plan.buffers[static_cast<std::size_t>(at.slice.buffer)].role);
  if (const auto row = contiguous_from(at, tiling)) {
    route.base = memory.at(at.slice, parity).at + *row * route.row_bytes;
    return route;
  }
  route.by_tile = stacks_tiles(at);
  const auto entries = route.by_tile ? tiling.positions : rows_of_tiles(tiling.grid);
  pieces_of(*this, at, tiling, entries).put(table_memory, tiling.height, route);
  return route;
}

Route Tables::route(const Gemm& step, const Tiling& tiling) const {
  if (step.sums.from.empty()) return route(step.out, tiling);
  Route route;
  route.row_bytes = memory.row_bytes(step.out.slice.buffer);
  route.matrix =
      static_cast<std::uint8_t>(plan.buffers[static_cast<std::size_t>(step.out.slice.buffer)].role);
  const std::vector<std::int64_t> rows = rows_of_tiles(tiling.grid);
  std::vector<std::int64_t> of_parts, of_sums;
  for (const std::int64_t position : rows)
    (is_sum(step, tiling.rect(tiling.tile(position)).row) ? of_sums : of_parts).push_back(position);
  std::vector<Placement> places = step.sums.to;
  std::ranges::stable_partition(places, [&](const Placement& at) {
    return plan.buffers[static_cast<std::size_t>(at.slice.buffer)].role != Role::internal;
  });
  PieceTable parts = pieces_of(*this, step.out, tiling, of_parts),
             sums = pieces_of(*this, places.front(), tiling, of_sums);
  for (std::size_t i = 1; i < places.size(); ++i)
    sums.join(pieces_of(*this, places[i], tiling, of_sums), route.row_bytes);
  const std::int64_t piece = std::gcd(parts.piece, sums.piece);
  const std::size_t dests = std::max(parts.dests, sums.dests);
  for (PieceTable* table : {&parts, &sums}) table->cut(piece, dests, route.row_bytes);
  PieceTable all{{}, piece, dests};
  const auto of_tile = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(tiling.height / piece) * dests);
  auto part = parts.entries.begin(), sum = sums.entries.begin();
  for (const std::int64_t position : rows) {
    auto& next = is_sum(step, tiling.rect(tiling.tile(position)).row) ? sum : part;
    all.entries.insert(all.entries.end(), next, next + of_tile);
    next += of_tile;
  }
  all.put(table_memory, tiling.height, route);
  return route;
}

const std::int32_t* Tables::leaving(const Gemm& step, const Tiling& tiling, int rank) const {
  const auto count = [&](std::int64_t position) {
    std::int32_t rows = 0;
    const TileRect rect = tiling.rect(tiling.tile(position));
    for (const Placement& to : stored_at(step, rect.row))
      for_each_piece(to, tiling.grid, plan.routing(), position, rect, [&](const Piece& piece) {
        if (piece.rank != rank) rows += static_cast<std::int32_t>(piece.rows);
      });
    return rows;
  };
  std::vector<std::int32_t> rows, by_row_of_tiles(static_cast<std::size_t>(tiling.grid.tiles_m()), -1);
  const bool alike = !stacks_tiles(step.out);  // all tiles of a row of tiles go to the same ranks
  for (const std::int64_t position : tiling.positions) {
    if (!alike || tiling.grid.phantom(tiling.tile(position))) {
      rows.push_back(count(position));
      continue;
    }
    std::int32_t& known = by_row_of_tiles[static_cast<std::size_t>(tiling.tile(position).m)];
    if (known < 0) known = count(position);
    rows.push_back(known);
  }
  return std::ranges::all_of(rows, [](std::int32_t of) { return of == 0; }) ? nullptr
                                                                            : table_memory.put(rows);
}

std::optional<Tables::Moves> Tables::moves(const std::vector<std::pair<Placement, Placement>>& passes,
                                           const Tiling& tiling) const {
  std::vector<std::vector<std::pair<char*, char*>>> tiles(tiling.positions.size());
  std::vector<char*> places;
  const auto matrix = [&](const Placement& at) {
    return static_cast<std::uint8_t>(plan.buffers[static_cast<std::size_t>(at.slice.buffer)].role);
  };
  Moves moves;
  moves.from.matrix = matrix(passes.front().first), moves.to.matrix = matrix(passes.front().second);
  for (const auto& [from, to] : passes) {
    if (matrix(from) != moves.from.matrix || matrix(to) != moves.to.matrix) return std::nullopt;
    const RowAddresses sources(*this, from, tiling), targets(*this, to, tiling);
    if (sources.dests() != 1 || targets.dests() != 1) return std::nullopt;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      const auto source = sources.of(tiling.positions[t]), target = targets.of(tiling.positions[t]);
      for (std::size_t row = 0; row < source.size(); ++row) {
        if (source[row] == nullptr || target[row] == nullptr) continue;
        tiles[t].emplace_back(source[row], target[row]);
        places.push_back(target[row]);
      }
    }
  }
  std::ranges::sort(places);
  if (std::ranges::adjacent_find(places) != places.end()) return std::nullopt;
  std::size_t most = 1;
  for (const auto& rows : tiles) most = std::max(most, rows.size());
  std::vector<char*> from(tiles.size() * most, nullptr), to = from;
  for (std::size_t t = 0; t < tiles.size(); ++t)
    for (std::size_t row = 0; row < tiles[t].size(); ++row)
      std::tie(from[t * most + row], to[t * most + row]) = tiles[t][row];
  moves.rows = static_cast<std::int32_t>(most);
  moves.from.pieces = moves.to.pieces = moves.rows;
  moves.from.by_tile = moves.to.by_tile = true;
  moves.from.table = table_memory.put(from), moves.to.table = table_memory.put(to);
  return moves;
}

GateTable Tables::gates(const std::vector<TileGate>& gates, const Tiling& tiling, int rank) const {
  if (gates.empty()) return {};
  std::vector<Group> groups(gates.size());
  std::vector<Target> current(gates.size()), targets;  // what tiles of the current groups await
  targets.reserve(tiling.positions.size() * gates.size());
  for (const std::int64_t position : tiling.positions)
    for (std::size_t i = 0; i < gates.size(); ++i) {
      if (tiling.grid.phantom(tiling.tile(position))) {  // may come after the last group
        targets.emplace_back();
        continue;
      }
      const TileGate& gate = gates[i];
      if (groups[i].moves_to(gate.ends, position)) {
        const std::int64_t group = groups[i].number;
        const CounterRef ref{gate.counter, rank, gate.entry(group)};
        const Target target{memory.counter(ref), gate.targets[static_cast<std::size_t>(group)],
                            memory.growth(ref)};
        const bool nothing = target.target == 0 && target.growth == 0;
        current[i] = nothing ? Target{} : target;
      }
      targets.push_back(current[i]);
    }
  return {table_memory.put(targets), static_cast<std::int32_t>(gates.size())};
}

NotifyTable Tables::notifies(const std::vector<TileNotify>& notifies, const Tiling& tiling, int rank) const {
  NotifyTable table;
  if (notifies.empty()) return table;
  std::vector<Group> groups(notifies.size());
  std::vector<std::vector<std::uint32_t*>> current(notifies.size());  // counters of the current groups
  std::vector<std::uint32_t*> all;                                    // of all tiles
  std::vector<std::size_t> ends;                                      // by tile
  for (const std::int64_t position : tiling.positions) {
    const std::size_t begin = all.size();
    for (std::size_t i = 0; i < notifies.size() && !tiling.grid.phantom(tiling.tile(position)); ++i) {
      const TileNotify& notify = notifies[i];
      if (groups[i].moves_to(notify.ends, position)) {
        const std::int64_t group = groups[i].number;
        current[i].clear();
        notify.for_each_rank(group, [&](std::int32_t to) {
          current[i].push_back(memory.counter({notify.counter, to, notify.entry(group)}));
          table.system = table.system || to != rank;
        });
      }
      all.insert(all.end(), current[i].begin(), current[i].end());
    }
    ends.push_back(all.size());
    table.count = std::max(table.count, static_cast<std::int32_t>(all.size() - begin));
  }
  const auto count = static_cast<std::size_t>(table.count);
  std::vector<std::uint32_t*> flat(ends.size() * count, nullptr);  // as many of each tile
  for (std::size_t tile = 0, begin = 0; tile < ends.size(); begin = ends[tile++])
    std::copy(all.begin() + static_cast<std::ptrdiff_t>(begin),
              all.begin() + static_cast<std::ptrdiff_t>(ends[tile]),
              flat.begin() + static_cast<std::ptrdiff_t>(tile * count));
  table.counters = table_memory.put(flat);
  return table;
}

}  // namespace shingle::cuda
