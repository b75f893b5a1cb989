// Rows of tiles at random addresses: a Route, and separately the address of each row.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>

#include "cuda/kernels/elementwise.hpp"
#include "device.hpp"
#include "shingle/base/dtype.hpp"

namespace shingle::cuda::test {

using Random = std::mt19937;

inline int draw(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

inline DType dtype(Element type) {
  return type == Element::f32 ? DType::f32 : type == Element::bf16 ? DType::bf16 : DType::f16;
}

/// A grid whose tiles start in a random order. Positions without a tile are phantoms.
struct TestGrid {
  int rows, cols, tile_rows, tile_cols;
  std::vector<TileAt> order;
  std::vector<std::int32_t> position_of;

  int tiles_m() const { return (rows + tile_rows - 1) / tile_rows; }
  int tiles_n() const { return (cols + tile_cols - 1) / tile_cols; }

  void shuffle(Random& random, int phantoms) {
    for (int m = 0; m < tiles_m(); ++m)
      for (int n = 0; n < tiles_n(); ++n) order.push_back({m, n});
    order.insert(order.end(), static_cast<std::size_t>(phantoms), TileAt{-1, -1});
    std::shuffle(order.begin(), order.end(), random);
    position_of.resize(static_cast<std::size_t>(tiles_m()) * tiles_n());
    for (std::size_t p = 0; p < order.size(); ++p)
      if (order[p].m >= 0) position_of[order[p].m * tiles_n() + order[p].n] = static_cast<std::int32_t>(p);
  }
  int position(int m, int n) const { return position_of[static_cast<std::size_t>(m) * tiles_n() + n]; }
};

enum class Layout { matrix, by_tile, by_row };

struct LayoutChoice {
  Layout layout = Layout::matrix;
  int piece_rows = 1;  ///< rows of a table entry
  int dests = 1;
  bool alike = false;     ///< each destination has the row layout of the first
  int cols = 0;           ///< columns of the matrix; 0: those of the grid
  int holes_percent = 0;  ///< percentage of null entries
  int odd = 0;            ///< elements by which all addresses are misaligned
};

class Placed {
 public:
  Placed(Random& random, const TestGrid& grid, Element type, const LayoutChoice& choice)
      : grid_(grid), choice_(choice), size_(static_cast<int>(size_bytes(dtype(type)))) {
    const int cols = choice.cols > 0 ? choice.cols : grid.cols;
    // Row lengths are multiples of 16 bytes, unless `odd` is set.
    const bool tile_wide = choice.layout == Layout::by_tile && choice.cols == 0;
    const int width = tile_wide ? std::min(grid.tile_cols, cols) : cols;
    stride_ = (width + 7) / 8 * 8 + choice.odd;
    if (choice.layout == Layout::matrix) {
      image.resize(static_cast<std::size_t>(grid.rows * stride_ + choice.odd) * size_);
    } else {
      lay_out_table(random);
    }
    std::memset(image.data(), 0xff, image.size());
  }

  /// Element index of a tile's row, at the tile's column 0 by tile, else at the grid's; -1: no address.
  std::int64_t at(int m, int n, int row, int dest = 0) const {
    if (choice_.layout == Layout::matrix)
      return (std::int64_t{m} * grid_.tile_rows + row) * stride_ + choice_.odd;
    const std::int64_t block = blocks_[entry(m, n, row, dest)];
    return block < 0 ? -1 : block + row % choice_.piece_rows * stride_;
  }
  bool by_tile() const { return choice_.layout == Layout::by_tile; }

  /// `shift(m, d)`: bytes that a kernel adds to addresses by row at a destination, taken off here.
  template <class Shift>
  Route to_device(const Shift& shift) {
    memory = upload(image);
    Route route;
    route.base = memory.get<char>() + choice_.odd * size_;
    route.row_bytes = stride_ * size_;
    if (choice_.layout == Layout::matrix) return route;
    std::vector<char*> table;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const auto dests = static_cast<std::size_t>(choice_.dests);
      const auto m = static_cast<int>(i / dests / static_cast<std::size_t>(pieces()));
      const std::int64_t off = by_tile() ? 0 : shift(m, static_cast<int>(i % dests));
      table.push_back(blocks_[i] < 0 ? nullptr : memory.get<char>() + blocks_[i] * size_ - off);
    }
    table_ = upload(table);
    route.table = table_.get<char*>();
    route.piece_rows = choice_.piece_rows;
    route.pieces = pieces();
    route.dests = choice_.dests;
    route.by_tile = by_tile();
    return route;
  }

  Route to_device() {
    return to_device([](int, int) { return 0; });
  }

  std::vector<char> image;  ///< expected content of the memory
  DeviceMemory memory;

 private:
  int pieces() const { return (grid_.tile_rows + choice_.piece_rows - 1) / choice_.piece_rows; }
  std::size_t entry(int m, int n, int row, int dest) const {
    const int index = by_tile() ? grid_.position(m, n) : m;
    return (static_cast<std::size_t>(index) * pieces() + row / choice_.piece_rows) * choice_.dests + dest;
  }
  void lay_out_table(Random& random) {
    const std::size_t indices = by_tile() ? grid_.order.size() : static_cast<std::size_t>(grid_.tiles_m());
    const std::size_t count = indices * pieces() * choice_.dests;
    const std::int64_t block = std::int64_t{choice_.piece_rows} * stride_;
    for (std::size_t i = 0; i < count; ++i)
      blocks_.push_back(static_cast<std::int64_t>(i) * block + choice_.odd);
    std::shuffle(blocks_.begin(), blocks_.end(), random);
    for (std::int64_t& at : blocks_)
      if (draw(random, 1, 100) <= choice_.holes_percent) at = -1;
    if (choice_.alike) make_alike(static_cast<std::int64_t>(count), block);
    image.resize((count * block + choice_.odd) * size_);
  }

  /// Cuts the memory into one part for each destination, all with the row layout of the first.
  void make_alike(std::int64_t count, std::int64_t block) {
    const auto dests = static_cast<std::size_t>(choice_.dests);
    std::vector<std::int64_t> places(blocks_.size() / dests);
    for (std::size_t i = 0; i < places.size(); ++i)
      places[i] = static_cast<std::int64_t>(i) * block + choice_.odd;
    std::shuffle(places.begin(), places.end(), std::mt19937(1));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const std::int64_t part = count * block / choice_.dests * static_cast<std::int64_t>(i % dests);
      blocks_[i] = blocks_[i / dests * dests] < 0 ? -1 : places[i / dests] + part;
    }
  }

  const TestGrid& grid_;
  LayoutChoice choice_;
  int size_;
  int stride_ = 0;
  std::vector<std::int64_t> blocks_;
  DeviceMemory table_;
};

}  // namespace shingle::cuda::test
