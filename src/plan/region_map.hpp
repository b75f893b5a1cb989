// A matrix cut into rectangles, each with a value; cut further wherever an access has an edge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace shingle {

struct Rect {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;
};

/// Bands of rows, each a list of cells by column; O(log n) to find a cell, cells are copied when they are
/// cut.
template <class T>
class RegionMap {
 public:
  RegionMap(std::int64_t rows, std::int64_t cols, T value) : cols_(cols) {
    if (rows > 0 && cols > 0) bands_.emplace(0, Band{rows, {Cell{0, cols, std::move(value)}}});
  }

  /// Calls visit(Rect, T&) for the cells of a rectangle, after cutting them to its edges.
  template <class Visit>
  void visit(const Rect& at, Visit&& visit) {
    if (at.rows <= 0 || at.cols <= 0) return;
    auto band = cut_row(at.row);
    if (at.row + at.rows < bands_.rbegin()->second.end) cut_row(at.row + at.rows);
    for (; band != bands_.end() && band->first < at.row + at.rows; ++band) {
      Band& row_band = band->second;
      std::size_t i = cut_col(row_band, at.col);
      if (at.col + at.cols < cols_) cut_col(row_band, at.col + at.cols);
      for (; i < row_band.cells.size() && row_band.cells[i].begin < at.col + at.cols; ++i) {
        Cell& cell = row_band.cells[i];
        visit(Rect{band->first, row_band.end - band->first, cell.begin, cell.end - cell.begin}, cell.value);
      }
    }
  }

  /// Forgets all cuts inside a rectangle of whole rows and gives it one value.
  void replace_rows(std::int64_t row, std::int64_t rows, T value) {
    if (rows <= 0 || cols_ <= 0) return;
    auto first = cut_row(row);
    auto last = row + rows < bands_.rbegin()->second.end ? cut_row(row + rows) : bands_.end();
    bands_.erase(std::next(first), last);
    first->second = Band{row + rows, {Cell{0, cols_, std::move(value)}}};
  }

 private:
  struct Cell {
    std::int64_t begin;
    std::int64_t end;
    T value;
  };
  struct Band {
    std::int64_t end;
    std::vector<Cell> cells;  // by column: few, so that a vector beats a tree
  };

  typename std::map<std::int64_t, Band>::iterator cut_row(std::int64_t row) {
    auto band = std::prev(bands_.upper_bound(row));
    if (band->first == row) return band;
    Band lower = band->second;
    band->second.end = row;
    return bands_.emplace_hint(std::next(band), row, std::move(lower));
  }

  std::size_t cut_col(Band& band, std::int64_t col) {
    auto cell = std::prev(std::upper_bound(band.cells.begin(), band.cells.end(), col,
                                           [](std::int64_t c, const Cell& held) { return c < held.begin; }));
    if (cell->begin != col) {
      Cell right = *cell;
      right.begin = col;
      cell->end = col;
      cell = band.cells.insert(std::next(cell), std::move(right));
    }
    return static_cast<std::size_t>(cell - band.cells.begin());
  }

  std::int64_t cols_;
  std::map<std::int64_t, Band> bands_;
};

}  // namespace shingle
