// A matrix cut into rectangles, each with a value; cut further wherever an access has an edge.
#pragma once

#include <cstdint>
#include <map>

namespace shingle {

struct Rect {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;
};

/// Bands of rows, each a list of cells by column; O(log n) to find a cell, cells are copied when they are cut.
template <class T>
class RegionMap {
 public:
  RegionMap(std::int64_t rows, std::int64_t cols, T value) : cols_(cols) {
    if (rows > 0 && cols > 0) bands_.emplace(0, Band{rows, {{0, Cell{cols, std::move(value)}}}});
  }

  /// Calls visit(Rect, T&) for the cells of a rectangle, after cutting them to its edges.
  template <class Visit>
  void visit(const Rect& at, Visit&& visit) {
    if (at.rows <= 0 || at.cols <= 0) return;
    auto band = cut_row(at.row);
    if (at.row + at.rows < bands_.rbegin()->second.end) cut_row(at.row + at.rows);
    for (; band != bands_.end() && band->first < at.row + at.rows; ++band) {
      Band& row_band = band->second;
      auto cell = cut_col(row_band, at.col);
      if (at.col + at.cols < cols_) cut_col(row_band, at.col + at.cols);
      for (; cell != row_band.cells.end() && cell->first < at.col + at.cols; ++cell)
        visit(Rect{band->first, row_band.end - band->first, cell->first, cell->second.end - cell->first}, cell->second.value);
    }
  }

  /// Forgets all cuts inside a rectangle of whole rows and gives it one value.
  void replace_rows(std::int64_t row, std::int64_t rows, T value) {
    if (rows <= 0 || cols_ <= 0) return;
    auto first = cut_row(row);
    auto last = row + rows < bands_.rbegin()->second.end ? cut_row(row + rows) : bands_.end();
    bands_.erase(std::next(first), last);
    first->second = Band{row + rows, {{0, Cell{cols_, std::move(value)}}}};
  }

 private:
  struct Cell {
    std::int64_t end;
    T value;
  };
  using Cells = std::map<std::int64_t, Cell>;
  struct Band {
    std::int64_t end;
    Cells cells;
  };

  typename std::map<std::int64_t, Band>::iterator cut_row(std::int64_t row) {
    auto band = std::prev(bands_.upper_bound(row));
    if (band->first == row) return band;
    Band lower = band->second;
    band->second.end = row;
    return bands_.emplace_hint(std::next(band), row, std::move(lower));
  }

  typename Cells::iterator cut_col(Band& band, std::int64_t col) {
    auto cell = std::prev(band.cells.upper_bound(col));
    if (cell->first == col) return cell;
    Cell right = cell->second;
    cell->second.end = col;
    return band.cells.emplace_hint(std::next(cell), col, std::move(right));
  }

  std::int64_t cols_;
  std::map<std::int64_t, Band> bands_;
};

}  // namespace shingle
