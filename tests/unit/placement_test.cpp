// Every kind of placement beside its definition, row by row.
#include "shingle/plan/placement.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "support/random_problem.hpp"

namespace shingle::placement_test {
namespace {

using test::Dice;

/// Where a row of a tile lies: position of the tile, row in it → row and column of the buffer.
using Rows = std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::int64_t, std::int64_t>>;

/// What for_each_piece says, expanded; pieces are in order of tile rows, not empty, and disjoint there.
Rows expanded(const Placement& at, const TileGrid& grid, const Routing* routing) {
  Rows rows;
  for (std::int64_t position = 0; position < grid.positions(); ++position) {
    std::int64_t next = 0;
    for_each_piece(at, grid, routing, position, [&](const Piece& piece) {
      EXPECT_GE(piece.tile_row, next);
      EXPECT_GE(piece.rows, 1);
      EXPECT_FALSE(grid.phantom(grid.tile(position)));
      next = piece.tile_row + piece.rows;
      for (std::int64_t i = 0; i < piece.rows; ++i)
        rows[{position, piece.tile_row + i}] = {piece.row + i, piece.col};
    });
    EXPECT_LE(next, grid.rect(grid.tile(position)).rows);
  }
  return rows;
}

/// No two rows of tiles share an element of the buffer. Tiles of one column of the grid are equally wide.
void expect_disjoint(const Rows& rows, const TileGrid& grid) {
  std::map<std::int64_t, std::set<std::pair<std::int64_t, std::int64_t>>>
      taken;  // by row: columns [begin, end)
  for (const auto& [from, to] : rows) {
    const std::int64_t cols = grid.rect(grid.tile(from.first)).cols;
    for (const auto& [begin, end] : taken[to.first])
      EXPECT_TRUE(to.second >= end || to.second + cols <= begin) << to.first;
    taken[to.first].emplace(to.second, to.second + cols);
  }
}

void expect_in(const Rows& rows, const TileGrid& grid, const Slice& slice) {
  for (const auto& [from, to] : rows) {
    EXPECT_TRUE(to.first >= slice.row && to.first < slice.row + slice.rows) << to.first;
    EXPECT_TRUE(to.second >= slice.col &&
                to.second + grid.rect(grid.tile(from.first)).cols <= slice.col + slice.cols)
        << to.second;
  }
}

/// A grid in any order, and groups of its positions, empty ones among them.
struct Draw {
  TileGrid grid;
  std::vector<std::int64_t> ends;
};

Draw random_grid(Dice& dice, std::int64_t rows, std::int64_t tile_unit = 1) {
  const TileOrder order{
      dice.size(0, 1) ? Raster::along_n : Raster::along_m, static_cast<std::int32_t>(dice.size(1, 3)),
      static_cast<std::int32_t>(dice.size(1, 2)), static_cast<std::int32_t>(dice.size(1, 2)),
      static_cast<std::int32_t>(dice.size(0, 3))};
  Draw draw{make_grid(rows, dice.size(1, 20), static_cast<std::int32_t>(tile_unit * dice.size(1, 8)),
                      static_cast<std::int32_t>(dice.size(1, 8)), order),
            {}};
  for (std::int64_t g = dice.size(0, 4); g > 0; --g) draw.ends.push_back(dice.size(0, draw.grid.positions()));
  draw.ends.push_back(draw.grid.positions());
  std::sort(draw.ends.begin(), draw.ends.end());
  return draw;
}

Slice room(Dice& dice, std::int64_t rows, std::int64_t cols) {
  return {0, 0, dice.size(0, 3), rows, dice.size(0, 3), cols};
}

/// Positions that hold output, in order, with their rectangles.
template <class Visit>
void for_each_tile(const TileGrid& grid, Visit&& visit) {
  for (std::int64_t position = 0; position < grid.positions(); ++position)
    if (!grid.phantom(grid.tile(position))) visit(position, grid.rect(grid.tile(position)));
}

TEST(Placement, MatrixKeepsPlaces) {
  Dice dice(1);
  for (int i = 0; i < 200; ++i) {
    const auto world = static_cast<std::int32_t>(dice.size(1, 5));
    const std::int64_t len = dice.size(0, 12), m = dice.size(0, world * len);
    const Draw draw = random_grid(dice, world * len);
    const Slice slice = room(dice, m, draw.grid.cols);
    const RowMap map{world, dice.size(1, 5), len, len, 0, m};
    const Placement at{slice, placement::Matrix{map}};
    const Rows rows = expanded(at, draw.grid, nullptr);
    std::set<std::int64_t> hit;
    for (const auto& [from, to] : rows) {
      const TileRect rect = draw.grid.rect(draw.grid.tile(from.first));
      const RowRun run = map.run_at(rect.row + from.second, 1);
      EXPECT_EQ(to, std::pair(slice.row + run.matrix_row, slice.col + rect.col));
      hit.insert(to.first);
    }
    EXPECT_EQ(static_cast<std::int64_t>(hit.size()), m);  // phantom rows are nowhere, all others somewhere
    EXPECT_EQ(static_cast<std::int64_t>(rows.size()), m * draw.grid.tiles_n());
    expect_disjoint(rows, draw.grid);
    expect_in(rows, draw.grid, at.slice);
  }
}

TEST(Placement, SlotsStackTilesInTheirOrder) {
  Dice dice(2);
  for (int i = 0; i < 200; ++i) {
    const Draw draw = random_grid(dice, dice.size(0, 40));
    const Placement at{room(dice, draw.grid.rows * draw.grid.tiles_n(), draw.grid.tile_cols),
                       placement::Slots{}};
    Rows expected;
    std::int64_t next = at.slice.row;
    for_each_tile(draw.grid, [&](std::int64_t position, const TileRect& rect) {
      for (std::int64_t row = 0; row < rect.rows; ++row) expected[{position, row}] = {next++, at.slice.col};
    });
    EXPECT_EQ(next, at.slice.row + at.slice.rows);  // exactly full
    EXPECT_EQ(expanded(at, draw.grid, nullptr), expected);
    expect_disjoint(expected, draw.grid);
  }
}

TEST(Placement, SlotsOfAGroupBeginWhereItsBaseSays) {
  Dice dice(7);
  for (int i = 0; i < 200; ++i) {
    const Draw draw = random_grid(dice, dice.size(0, 40));
    placement::Slots slots{draw.ends};
    Rows expected;
    std::int64_t next = 0, start = 0;
    for (const std::int64_t end : draw.ends) {
      slots.bases.push_back(next += dice.size(0, 3));
      for_each_tile(draw.grid, [&](std::int64_t position, const TileRect& rect) {
        if (position < start || position >= end) return;
        for (std::int64_t row = 0; row < rect.rows; ++row) expected[{position, row}] = {next++, 0};
      });
      start = end;
    }
    const Placement at{room(dice, next, draw.grid.tile_cols), std::move(slots)};
    for (auto& [tile, to] : expected) to.first += at.slice.row, to.second = at.slice.col;
    EXPECT_EQ(expanded(at, draw.grid, nullptr), expected);
    expect_disjoint(expected, draw.grid);
  }
}

TEST(Placement, SubtilesStackTheSamePartOfAGroupsTiles) {
  Dice dice(3);
  for (int i = 0; i < 200; ++i) {
    const std::int64_t parts = dice.size(1, 6);
    const Draw draw = random_grid(dice, parts * dice.size(0, 12), parts);
    const Placement at{room(dice, draw.grid.rows * draw.grid.tiles_n(), draw.grid.tile_cols),
                       placement::Subtiles{draw.ends, static_cast<std::int32_t>(parts)}};
    Rows expected;
    std::int64_t next = at.slice.row, start = 0;
    for (const std::int64_t end : draw.ends) {
      for (std::int64_t part = 0; part < parts; ++part)
        for_each_tile(draw.grid, [&](std::int64_t position, const TileRect& rect) {
          if (position < start || position >= end) return;
          const std::int64_t rows = rect.rows / parts;
          for (std::int64_t row = part * rows; row < (part + 1) * rows; ++row)
            expected[{position, row}] = {next++, at.slice.col};
        });
      start = end;
    }
    EXPECT_EQ(next, at.slice.row + at.slice.rows);
    EXPECT_EQ(expanded(at, draw.grid, nullptr), expected);
    expect_disjoint(expected, draw.grid);
  }
}

TEST(Placement, PoolsKeepTheOrderOfExecutionWithinADestination) {
  Dice dice(4);
  for (int i = 0; i < 200; ++i) {
    const int world = static_cast<int>(dice.size(1, 5)), source = static_cast<int>(dice.size(0, world - 1));
    const auto routing = test::random_routing(dice, world, 40);
    const Draw draw = random_grid(dice, routing->rows(source));
    // All pools, one after another with gaps; and each destination's alone, as its receiver sees them.
    placement::Pools all{draw.ends, source};
    std::vector<placement::Pools> one(static_cast<std::size_t>(world), all);
    std::vector<std::vector<std::int64_t>> in_group(
        draw.ends.size(), std::vector<std::int64_t>(static_cast<std::size_t>(world)));
    for_each_tile(draw.grid, [&](std::int64_t position, const TileRect& rect) {
      for (std::int64_t row = 0; row < rect.rows; ++row)
        ++in_group[static_cast<std::size_t>(group_of(draw.ends, position))]
                  [static_cast<std::size_t>(routing->dest(source, rect.row + row))];
    });
    std::int64_t next = 0;
    std::vector<std::vector<std::int64_t>> at_row(draw.ends.size());
    for (std::size_t g = 0; g < draw.ends.size(); ++g)
      for (std::size_t d = 0; d < static_cast<std::size_t>(world); ++d) {
        all.bases.push_back(next);
        one[d].bases.push_back(next);
        one[d].dest = static_cast<std::int32_t>(d);
        at_row[g].push_back(next);
        next += in_group[g][d] + dice.size(0, 2);
      }
    const Slice slice = room(dice, next, draw.grid.tile_cols);
    Rows expected;
    std::vector<Rows> by_dest(static_cast<std::size_t>(world));
    for_each_tile(draw.grid, [&](std::int64_t position, const TileRect& rect) {
      const auto g = static_cast<std::size_t>(group_of(draw.ends, position));
      for (std::int64_t row = 0; row < rect.rows; ++row) {
        const auto dest = static_cast<std::size_t>(routing->dest(source, rect.row + row));
        const std::pair place(slice.row + at_row[g][dest]++, slice.col);
        expected[{position, row}] = by_dest[dest][{position, row}] = place;
      }
    });
    EXPECT_EQ(expanded({slice, all}, draw.grid, routing.get()), expected);
    expect_disjoint(expected, draw.grid);
    expect_in(expected, draw.grid, slice);
    for (std::size_t d = 0; d < one.size(); ++d)
      EXPECT_EQ(expanded({slice, one[d]}, draw.grid, routing.get()), by_dest[d]) << "destination " << d;
  }
}

TEST(Placement, RoutedRowsOfAllSourcesFillTheReceiver) {
  Dice dice(5);
  for (int i = 0; i < 200; ++i) {
    const int world = static_cast<int>(dice.size(1, 5)), dest = static_cast<int>(dice.size(0, world - 1));
    const auto routing = test::random_routing(dice, world, 30);
    const std::int64_t cols = dice.size(1, 20), tile_cols = dice.size(1, 8);
    std::map<std::int64_t, std::int64_t> rows_hit;  // how many columns of a row are placed
    for (int source = 0; source < world; ++source) {
      const TileGrid grid = make_grid(routing->rows(source), cols, static_cast<std::int32_t>(dice.size(1, 8)),
                                      static_cast<std::int32_t>(tile_cols));
      const std::int64_t base = routing->receive_base(dest, source);
      const Placement at{{0, 0, 0, routing->received(dest), 0, cols},
                         placement::Routed{source, dest, {base}}};
      const Rows rows = expanded(at, grid, routing.get());
      for (const auto& [from, to] : rows) {
        const TileRect rect = grid.rect(grid.tile(from.first));
        const std::int64_t row = rect.row + from.second;
        EXPECT_EQ(routing->dest(source, row), dest);
        EXPECT_EQ(to, std::pair(base + routing->count_before(source, dest, row), rect.col));
        rows_hit[to.first] += rect.cols;
      }
      expect_in(rows, grid, at.slice);
    }
    ASSERT_EQ(static_cast<std::int64_t>(rows_hit.size()), routing->received(dest));
    for (const auto& [row, hit] : rows_hit) EXPECT_EQ(hit, cols) << row;
  }
}

TEST(Placement, GroupsOfPositions) {
  const std::vector<std::int64_t> ends{2, 2, 5};  // the second group is empty
  EXPECT_EQ(group_of(ends, 0), 0);
  EXPECT_EQ(group_of(ends, 1), 0);
  EXPECT_EQ(group_of(ends, 2), 2);
  EXPECT_EQ(group_of(ends, 4), 2);
}

/// Every row of the grid with the rank, row and column that it is stored at.
using Stored = std::map<std::int64_t, std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>>>;

Stored stored(const Placement& at, const TileGrid& grid, const Routing* routing) {
  Stored rows;
  for (std::int64_t position = 0; position < grid.positions(); ++position)
    for_each_piece(at, grid, routing, position, [&](const Piece& piece) {
      const TileRect rect = grid.rect(grid.tile(position));
      if (rect.col != 0) return;
      for (std::int64_t i = 0; i < piece.rows; ++i)
        rows[rect.row + piece.tile_row + i].emplace_back(piece.rank, piece.row + i, piece.col);
    });
  return rows;
}

TEST(Placement, OwnersGetTheirRowsOfTheWhole) {
  Dice dice(11);
  for (int i = 0; i < 200; ++i) {
    const auto world = static_cast<std::int32_t>(dice.size(1, 6));
    const std::int64_t m = dice.size(1, 60), shard = ceil_div(m, world), pitch = shard + dice.size(0, 5);
    const TileGrid grid = random_grid(dice, world * pitch).grid;
    const Placement at{{0, 0, 7, shard, 2, grid.cols},
                       placement::Owners{{world, shard, shard, shard, 0, m, pitch}}};
    const Stored rows = stored(at, grid, nullptr);
    for (std::int64_t v = 0; v < grid.rows; ++v) {
      const std::int64_t owner = v / pitch, local = v % pitch;
      const bool real = local < shard && owner * shard + local < m;
      ASSERT_EQ(rows.count(v), real ? 1u : 0u) << v;
      if (!real) continue;
      ASSERT_EQ(rows.at(v).size(), 1u);
      EXPECT_EQ(rows.at(v)[0], std::tuple(static_cast<std::int32_t>(owner), 7 + local, std::int64_t{2}));
    }
    EXPECT_EQ(ranks_of(at, world).size(), static_cast<std::size_t>(world));
  }
}

TEST(Placement, SeveralRanksGetTheSame) {
  Dice dice(12);
  const TileGrid grid = random_grid(dice, 20).grid;
  const std::vector<std::int32_t> ranks{2, 0, 3};
  const Placement at{{0, 3, 4, 20, 0, grid.cols}, placement::Matrix{RowMap::identity(20), ranks}};
  for (const auto& [row, places] : stored(at, grid, nullptr)) {
    ASSERT_EQ(places.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(places[i], std::tuple(ranks[i], row + 4, std::int64_t{0}));
  }
  EXPECT_EQ(ranks_of(at, 5), ranks);
  EXPECT_EQ(ranks_of(first_replica(at), 5), std::vector{ranks[0]});
}

TEST(Placement, EveryRowGoesToItsDestination) {
  Dice dice(13);
  const auto routing = test::random_routing(dice, 4, 50);
  for (int source = 0; source < 4; ++source) {
    const TileGrid grid = random_grid(dice, routing->rows(source)).grid;
    const std::vector<std::int64_t> bases{5, 100, 200, 300};
    const Placement at{{0, source, 1, 0, 0, grid.cols}, placement::Routed{source, -1, bases}};
    std::int64_t before[4] = {};
    const Stored rows = stored(at, grid, routing.get());
    for (std::int64_t row = 0; row < grid.rows; ++row) {
      const std::int32_t dest = routing->dest(source, row);
      ASSERT_EQ(rows.at(row).size(), 1u);
      EXPECT_EQ(rows.at(row)[0], std::tuple(dest, 1 + bases[static_cast<std::size_t>(dest)] + before[dest]++,
                                            std::int64_t{0}));
    }
  }
}

}  // namespace
}  // namespace shingle::placement_test
