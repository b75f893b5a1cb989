// Tile grids: the tiles of a step and the order in which they start, in closed form.
//
// A grid covers `rows` × `cols` output elements with tiles of tile_rows × tile_cols; tiles at the far edges
// may be ragged. The order is a loop nest over factors of the two tile axes. Every loop runs over one digit
// of the m-index or the n-index, and may start rotated. Outer loops hold the more significant digits. Raster,
// swizzle and clusters are such nests. If the factors overshoot the tiles, the nest has phantom tiles:
// positions that hold no output.
//
// The code is C++17 and constexpr throughout, so that host, device and verifier compute the same numbers from
// one source.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SHINGLE_HD __host__ __device__
#else
#define SHINGLE_HD
#endif

namespace shingle {

SHINGLE_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
SHINGLE_HD constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
SHINGLE_HD constexpr std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

enum class Axis : std::uint8_t { m, n };

/// One loop of a nest. It takes `extent` values of a digit of one axis. It starts at `rotation` and runs
/// upwards or downwards, cyclically.
struct Loop {
  Axis axis = Axis::m;
  std::int32_t extent = 1;
  std::int32_t rotation = 0;
  bool descending = false;

  /// digit() is the digit of the loop's value-th iteration; value() is the inverse. Both are in [0, extent).
  SHINGLE_HD constexpr std::int64_t digit(std::int64_t value) const {
    return (descending ? rotation - value + extent : rotation + value) % extent;
  }
  SHINGLE_HD constexpr std::int64_t value(std::int64_t digit) const {
    return (descending ? rotation - digit + extent : digit - rotation + extent) % extent;
  }
  SHINGLE_HD constexpr bool operator==(const Loop& o) const {
    return axis == o.axis && extent == o.extent && rotation == o.rotation && descending == o.descending;
  }
};

/// A tile by its indices along the two axes, not by elements.
struct Tile {
  std::int64_t m = 0;
  std::int64_t n = 0;
};

/// The output elements of a tile.
struct TileRect {
  std::int64_t row = 0;
  std::int64_t col = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

inline constexpr int max_loops = 8;

struct TileGrid {
  std::int64_t rows = 0;  ///< output elements
  std::int64_t cols = 0;
  std::int32_t tile_rows = 1;
  std::int32_t tile_cols = 1;
  Loop loops[max_loops] = {};  ///< outermost first
  std::int32_t loop_count = 0;

  SHINGLE_HD constexpr std::int64_t tiles_m() const { return ceil_div(rows, tile_rows); }
  SHINGLE_HD constexpr std::int64_t tiles_n() const { return ceil_div(cols, tile_cols); }
  /// Number of tiles that hold output.
  SHINGLE_HD constexpr std::int64_t tiles() const { return tiles_m() * tiles_n(); }
  /// Number of positions of the loop nest, phantom tiles included. Linear indices run over [0, positions()).
  SHINGLE_HD constexpr std::int64_t positions() const {
    std::int64_t count = 1;
    for (int i = 0; i < loop_count; ++i) count *= loops[i].extent;
    return tiles() == 0 ? 0 : count;
  }
  SHINGLE_HD constexpr bool phantom(Tile tile) const { return tile.m >= tiles_m() || tile.n >= tiles_n(); }

  /// The tile at a position of the order.
  SHINGLE_HD constexpr Tile tile(std::int64_t linear) const {
    Tile at;
    std::int64_t unit[2] = {1, 1};
    for (int i = loop_count - 1; i >= 0; --i) {
      const Loop& loop = loops[i];
      const std::int64_t digit = loop.digit(linear % loop.extent);
      linear /= loop.extent;
      std::int64_t& index = loop.axis == Axis::m ? at.m : at.n;
      index += digit * unit[int(loop.axis)];
      unit[int(loop.axis)] *= loop.extent;
    }
    return at;
  }

  /// The position of a tile: the inverse of tile().
  SHINGLE_HD constexpr std::int64_t linear(Tile tile) const {
    std::int64_t position = 0, scale = 1;
    for (int i = loop_count - 1; i >= 0; --i) {
      const Loop& loop = loops[i];
      std::int64_t& index = loop.axis == Axis::m ? tile.m : tile.n;
      const std::int64_t value = loop.value(index % loop.extent);
      index /= loop.extent;
      position += value * scale;
      scale *= loop.extent;
    }
    return position;
  }

  /// The elements of a tile, clipped at the ragged edges. A phantom tile has zero rows or columns.
  SHINGLE_HD constexpr TileRect rect(Tile tile) const {
    const std::int64_t row = smaller(tile.m * tile_rows, rows), col = smaller(tile.n * tile_cols, cols);
    return {row, col, smaller(row + tile_rows, rows) - row, smaller(col + tile_cols, cols) - col};
  }

  /// The wave of a position if `workers` tiles are in flight together. Phantom tiles take a worker too.
  SHINGLE_HD static constexpr std::int64_t wave(std::int64_t linear, std::int64_t workers) {
    return linear / workers;
  }

  /// Sum of weight_m · weight_n over the tiles with output at positions before `linear`. weight_m(lo, hi) is
  /// the summed weight of the tile rows [lo, hi), weight_n(lo, hi) that of the tile columns. The cost is one
  /// step a loop, independent of the number of tiles. Slots, counts and offsets are therefore closed forms.
  template <class WeightM, class WeightN>
  SHINGLE_HD constexpr std::int64_t sum_before(std::int64_t linear, WeightM weight_m,
                                               WeightN weight_n) const {
    const std::int64_t limit[2] = {tiles_m(), tiles_n()};
    std::int64_t rest = positions();  // positions below the current loop
    std::int64_t span[2] = {1, 1};    // tiles that the remaining digits of each axis address
    for (int i = 0; i < loop_count; ++i) span[int(loops[i].axis)] *= loops[i].extent;
    if (linear >= rest)
      return limit[0] == 0 || limit[1] == 0 ? 0 : weight_m(0, limit[0]) * weight_n(0, limit[1]);
    std::int64_t first[2] = {0, 0};  // first tile that the digits fixed so far leave possible
    std::int64_t total = 0;
    for (int i = 0; i < loop_count; ++i) {
      const Loop& loop = loops[i];
      const int axis = int(loop.axis);
      rest /= loop.extent;
      span[axis] /= loop.extent;
      const std::int64_t value = linear / rest;
      linear -= value * rest;
      // Earlier values of this loop cover the cyclic digit interval [begin, begin + value).
      const std::int64_t begin = loop.descending ? loop.digit(value - 1) : loop.rotation, end = begin + value;
      const std::int64_t wrapped = larger(end - loop.extent, 0);
      total += strip(begin, end - wrapped, first, span, limit, axis, weight_m, weight_n);
      total += strip(0, wrapped, first, span, limit, axis, weight_m, weight_n);
      first[axis] += loop.digit(value) * span[axis];
    }
    return total;
  }

  /// Number of tiles with output before a position: the slot of the tile at that position.
  SHINGLE_HD constexpr std::int64_t tiles_before(std::int64_t linear) const {
    return sum_before(linear, Count{}, Count{});
  }

  /// Output rows of the tiles before a position, summed tile by tile. If finished tiles are stacked in one
  /// column, the rows of the tile at this position start there.
  SHINGLE_HD constexpr std::int64_t rows_before(std::int64_t linear) const {
    return sum_before(linear, Extent{rows, tile_rows}, Count{});
  }

  SHINGLE_HD constexpr bool operator==(const TileGrid& o) const {
    bool same = rows == o.rows && cols == o.cols && tile_rows == o.tile_rows && tile_cols == o.tile_cols &&
                loop_count == o.loop_count;
    for (int i = 0; same && i < loop_count; ++i) same = loops[i] == o.loops[i];
    return same;
  }

  /// Weight of a tile interval: the number of its tiles.
  struct Count {
    SHINGLE_HD constexpr std::int64_t operator()(std::int64_t lo, std::int64_t hi) const { return hi - lo; }
  };
  /// Weight of a tile interval: the number of elements that it covers.
  struct Extent {
    std::int64_t size, tile;
    SHINGLE_HD constexpr std::int64_t operator()(std::int64_t lo, std::int64_t hi) const {
      return smaller(hi * tile, size) - smaller(lo * tile, size);
    }
  };

 private:
  template <class WeightM, class WeightN>
  SHINGLE_HD static constexpr std::int64_t strip(std::int64_t lo, std::int64_t hi, const std::int64_t* first,
                                                 const std::int64_t* span, const std::int64_t* limit,
                                                 int axis, WeightM weight_m, WeightN weight_n) {
    std::int64_t from[2] = {first[0], first[1]};
    std::int64_t to[2] = {first[0] + span[0], first[1] + span[1]};
    from[axis] = first[axis] + lo * span[axis];
    to[axis] = first[axis] + hi * span[axis];
    for (int a = 0; a < 2; ++a) {
      to[a] = smaller(to[a], limit[a]);
      if (from[a] >= to[a]) return 0;
    }
    return weight_m(from[0], to[0]) * weight_n(from[1], to[1]);
  }
};

enum class Raster : std::uint8_t { along_n, along_m };  ///< the axis that runs first

/// Traversal of a grid, in the terms of GEMM libraries.
struct TileOrder {
  Raster raster = Raster::along_n;
  std::int32_t swizzle = 1;    ///< clusters of the slow axis taken together, so that operands stay in cache
  std::int32_t cluster_m = 1;  ///< tiles that start together
  std::int32_t cluster_n = 1;
  /// First band of the slow axis, modulo the number of bands. A band is swizzle · cluster tiles.
  std::int32_t rotation = 0;

  constexpr bool operator==(const TileOrder& o) const {
    return raster == o.raster && swizzle == o.swizzle && cluster_m == o.cluster_m &&
           cluster_n == o.cluster_n && rotation == o.rotation;
  }
};

/// The grid of a rows × cols output in tiles of tile_rows × tile_cols, traversed in `order`.
SHINGLE_HD constexpr TileGrid make_grid(std::int64_t rows, std::int64_t cols, std::int32_t tile_rows,
                                        std::int32_t tile_cols, const TileOrder& order = {}) {
  TileGrid grid;
  grid.rows = rows;
  grid.cols = cols;
  grid.tile_rows = tile_rows;
  grid.tile_cols = tile_cols;
  const bool along_n = order.raster == Raster::along_n;
  const Axis slow = along_n ? Axis::m : Axis::n, fast = along_n ? Axis::n : Axis::m;
  const std::int64_t slow_tiles = along_n ? grid.tiles_m() : grid.tiles_n();
  const std::int64_t fast_tiles = along_n ? grid.tiles_n() : grid.tiles_m();
  const std::int32_t slow_cluster = along_n ? order.cluster_m : order.cluster_n;
  const std::int32_t fast_cluster = along_n ? order.cluster_n : order.cluster_m;
  const auto bands =
      std::int32_t(larger(ceil_div(slow_tiles, std::int64_t(order.swizzle) * slow_cluster), 1));
  const auto steps = std::int32_t(larger(ceil_div(fast_tiles, fast_cluster), 1));
  const Loop nest[] = {{slow, bands, order.rotation % bands},
                       {fast, steps, 0},
                       {slow, order.swizzle, 0},
                       {fast, fast_cluster, 0},
                       {slow, slow_cluster, 0}};
  for (const Loop& loop : nest)
    if (loop.extent > 1) grid.loops[grid.loop_count++] = loop;
  return grid;
}

}  // namespace shingle
