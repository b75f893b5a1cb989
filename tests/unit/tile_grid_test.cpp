// Closed forms of tile grids beside what walking the grid position by position says.
#include "shingle/grid/tile_grid.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <vector>

#include "grid/tiles.hpp"
#include "support/random_problem.hpp"

namespace shingle::tile_grid_test {

void PrintTo(const TileGrid& grid, std::ostream* out) {
  *out << grid.rows << "x" << grid.cols << " in " << grid.tile_rows << "x" << grid.tile_cols << ", loops";
  for (int i = 0; i < grid.loop_count; ++i)
    *out << (grid.loops[i].axis == Axis::m ? " m" : " n") << grid.loops[i].extent << "+"
         << grid.loops[i].rotation << (grid.loops[i].descending ? " down" : "");
}

namespace {

using test::Dice;

/// Everything that is said of a grid in closed form, against a walk over its positions.
void expect_consistent(const TileGrid& grid) {
  SCOPED_TRACE(::testing::PrintToString(grid));
  std::int64_t reach[2] = {1, 1};
  for (int i = 0; i < grid.loop_count; ++i)
    reach[static_cast<int>(grid.loops[i].axis)] *= grid.loops[i].extent;
  ASSERT_EQ(grid.positions(), grid.tiles() == 0 ? 0 : reach[0] * reach[1]);

  // A weight that no closed form could know by accident: prime-ish values by index.
  const auto weight = [](std::int64_t index) { return index * index % 7 + 1; };
  const auto interval = [&](std::int64_t lo, std::int64_t hi) {
    std::int64_t sum = 0;
    for (std::int64_t i = lo; i < hi; ++i) sum += weight(i);
    return sum;
  };
  const std::vector<Tile> together = tiles_of(grid);
  ASSERT_EQ(static_cast<std::int64_t>(together.size()), grid.positions());
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::int64_t tiles = 0, rows = 0, weighted = 0, elements = 0;
  for (std::int64_t position = 0; position < grid.positions(); ++position) {
    const Tile tile = grid.tile(position);
    ASSERT_EQ(grid.linear(tile), position);
    const Tile& same = together[static_cast<std::size_t>(position)];
    ASSERT_TRUE(same.m == tile.m && same.n == tile.n) << position;
    ASSERT_TRUE(tile.m >= 0 && tile.m < reach[0] && tile.n >= 0 && tile.n < reach[1]) << position;
    ASSERT_TRUE(seen.emplace(tile.m, tile.n).second) << "twice: " << tile.m << ", " << tile.n;
    ASSERT_EQ(grid.tiles_before(position), tiles) << position;
    ASSERT_EQ(grid.rows_before(position), rows) << position;
    ASSERT_EQ(grid.sum_before(position, interval, interval), weighted) << position;
    const TileRect rect = grid.rect(tile);
    if (grid.phantom(tile)) {
      ASSERT_TRUE(rect.rows == 0 || rect.cols == 0) << position;
      continue;
    }
    ASSERT_EQ(rect.row, tile.m * grid.tile_rows);
    ASSERT_EQ(rect.col, tile.n * grid.tile_cols);
    ASSERT_EQ(rect.rows, std::min<std::int64_t>(grid.tile_rows, grid.rows - rect.row));
    ASSERT_EQ(rect.cols, std::min<std::int64_t>(grid.tile_cols, grid.cols - rect.col));
    ASSERT_TRUE(rect.rows > 0 && rect.cols > 0);
    ++tiles;
    rows += rect.rows;
    elements += rect.rows * rect.cols;
    weighted += weight(tile.m) * weight(tile.n);
  }
  EXPECT_EQ(tiles, grid.tiles());
  EXPECT_EQ(elements, grid.rows * grid.cols);
  // From the end on, everything has come before.
  for (const std::int64_t beyond : {0, 1, 100}) {
    EXPECT_EQ(grid.tiles_before(grid.positions() + beyond), tiles);
    EXPECT_EQ(grid.rows_before(grid.positions() + beyond), rows);
    EXPECT_EQ(grid.sum_before(grid.positions() + beyond, interval, interval), weighted);
  }
}

TEST(TileGrid, OrdersOfLibraries) {
  Dice dice(1);
  for (int i = 0; i < 300; ++i) {
    TileOrder order;
    order.raster = dice.size(0, 1) ? Raster::along_n : Raster::along_m;
    order.swizzle = static_cast<std::int32_t>(dice.size(1, 5));
    order.cluster_m = static_cast<std::int32_t>(dice.size(1, 3));
    order.cluster_n = static_cast<std::int32_t>(dice.size(1, 3));
    order.rotation = static_cast<std::int32_t>(dice.size(0, 9));
    // Down to nothing, and tiles larger than the matrix.
    expect_consistent(make_grid(dice.size(0, 60), dice.size(0, 60),
                                static_cast<std::int32_t>(dice.size(1, 70)),
                                static_cast<std::int32_t>(dice.size(1, 70)), order));
    expect_consistent(make_grid(dice.size(1, 60), dice.size(1, 60),
                                static_cast<std::int32_t>(dice.size(1, 8)),
                                static_cast<std::int32_t>(dice.size(1, 8)), order));
  }
}

/// Up to seven loops of either axis in any succession, odd factors, rotated at any level, overshooting the
/// tiles at times.
TileGrid random_nest(Dice& dice) {
  TileGrid grid;
  std::int64_t reach[2] = {1, 1};
  grid.loop_count = static_cast<std::int32_t>(dice.size(0, max_loops));
  for (int i = 0; i < grid.loop_count; ++i) {
    Loop& loop = grid.loops[i];
    loop.axis = dice.size(0, 1) ? Axis::m : Axis::n;
    loop.extent = static_cast<std::int32_t>(dice.size(1, 5));
    loop.rotation = static_cast<std::int32_t>(dice.size(0, loop.extent - 1));
    loop.descending = dice.size(0, 2) == 0;
    reach[static_cast<int>(loop.axis)] *= loop.extent;
  }
  grid.tile_rows = static_cast<std::int32_t>(dice.size(1, 9));
  grid.tile_cols = static_cast<std::int32_t>(dice.size(1, 9));
  grid.rows = dice.size(1, reach[0] * grid.tile_rows);
  grid.cols = dice.size(1, reach[1] * grid.tile_cols);
  return grid;
}

TEST(TileGrid, HandMadeNests) {
  Dice dice(2);
  for (int i = 0; i < 400; ++i) expect_consistent(random_nest(dice));
}

std::vector<std::pair<int, int>> walk(const TileGrid& grid) {
  std::vector<std::pair<int, int>> tiles;
  for (std::int64_t position = 0; position < grid.positions(); ++position) {
    const Tile tile = grid.tile(position);
    if (!grid.phantom(tile)) tiles.emplace_back(static_cast<int>(tile.m), static_cast<int>(tile.n));
  }
  return tiles;
}

using Walk = std::vector<std::pair<int, int>>;

TEST(TileGrid, RasterIsTheAxisThatRunsFirst) {
  EXPECT_EQ(walk(make_grid(2, 3, 1, 1)), (Walk{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(walk(make_grid(2, 3, 1, 1, {Raster::along_m})),
            (Walk{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}));
}

TEST(TileGrid, SwizzleTakesBandsOfTheSlowAxis) {
  // Two tile rows at a time, down before along; the third row is a band of its own with a phantom beside it.
  const TileGrid grid = make_grid(3, 2, 1, 1, {Raster::along_n, 2});
  EXPECT_EQ(grid.positions(), 8);
  EXPECT_EQ(walk(grid), (Walk{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}}));
}

TEST(TileGrid, ClustersStartTogether) {
  const TileGrid grid = make_grid(4, 4, 1, 1, {Raster::along_n, 1, 2, 2});
  EXPECT_EQ(walk(grid), (Walk{{0, 0},
                              {1, 0},
                              {0, 1},
                              {1, 1},
                              {0, 2},
                              {1, 2},
                              {0, 3},
                              {1, 3},
                              {2, 0},
                              {3, 0},
                              {2, 1},
                              {3, 1},
                              {2, 2},
                              {3, 2},
                              {2, 3},
                              {3, 3}}));
}

TEST(TileGrid, RotationStartsAtABand) {
  EXPECT_EQ(walk(make_grid(3, 1, 1, 1, {Raster::along_n, 1, 1, 1, 1})), (Walk{{1, 0}, {2, 0}, {0, 0}}));
  EXPECT_EQ(walk(make_grid(3, 1, 1, 1, {Raster::along_n, 1, 1, 1, 5})),
            (Walk{{2, 0}, {0, 0}, {1, 0}}));  // modulo the bands
}

TEST(TileGrid, DegenerateSizes) {
  for (const auto& [rows, cols] : {std::pair{0, 5}, {5, 0}, {0, 0}}) {
    const TileGrid grid = make_grid(rows, cols, 2, 2);
    EXPECT_EQ(grid.tiles(), 0);
    EXPECT_EQ(grid.positions(), 0);
    EXPECT_EQ(grid.rows_before(0), 0);
  }
  const TileGrid one = make_grid(1, 1, 1000, 1000);
  EXPECT_EQ(one.positions(), 1);
  EXPECT_EQ(one.rect(one.tile(0)).rows, 1);
  EXPECT_EQ(one.rect(one.tile(0)).cols, 1);
}

TEST(TileGrid, WavesCountPhantomTilesToo) {
  EXPECT_EQ(TileGrid::wave(0, 3), 0);
  EXPECT_EQ(TileGrid::wave(2, 3), 0);
  EXPECT_EQ(TileGrid::wave(3, 3), 1);
}

TEST(TileGrid, HugeGridsDoNotOverflow) {
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  const TileGrid grid = make_grid(most, most, 1, 1, {Raster::along_m, 7, 1, 3, 2});
  const Tile last{most - 1, most - 1};
  EXPECT_FALSE(grid.phantom(last));
  EXPECT_EQ(grid.tile(grid.linear(last)).m, last.m);
  EXPECT_EQ(grid.tile(grid.linear(last)).n, last.n);
  EXPECT_EQ(grid.tiles_before(grid.positions()), most * most);
  EXPECT_EQ(grid.rows_before(grid.positions()), most * most);
}

// The device compiles the same source: everything has to be a constant expression.
constexpr TileGrid at_compile_time = make_grid(300, 500, 128, 256, {Raster::along_m, 2, 1, 1, 1});
static_assert(at_compile_time.tiles() == 6);
static_assert(at_compile_time.linear(at_compile_time.tile(3)) == 3);
static_assert(at_compile_time.rect({2, 1}).rows == 44 && at_compile_time.rect({2, 1}).cols == 244);
static_assert(at_compile_time.rows_before(at_compile_time.positions()) == 600);
static_assert(at_compile_time.tiles_before(at_compile_time.positions()) == 6);
static_assert(at_compile_time.phantom({3, 0}) && at_compile_time == at_compile_time);
static_assert(TileGrid::wave(7, 4) == 1);

}  // namespace
}  // namespace shingle::tile_grid_test
