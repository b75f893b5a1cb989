// A matrix cut into rectangles, each with a value; cut further wherever an access has an edge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace shingle {

struct Rect {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;
};

/// Bands of rows, each a list of cells by column; O(log n) to find a band that is not near the last one,
/// cells are copied when they are cut.
template <class T>
class RegionMap {
 public:
  RegionMap(std::int64_t rows, std::int64_t cols, T value) : rows_(rows), cols_(cols) {
    if (rows > 0 && cols > 0) bands_.emplace(0, Band{rows, Cell{0, cols, std::move(value)}, {}});
  }
  RegionMap(RegionMap&&) = default;  // a copy would remember a place of the original

  /// Calls visit(Rect, T&) for the cells of a rectangle, after cutting them to its edges.
  template <class Visit>
  void visit(const Rect& at, Visit&& visit) {
    if (at.rows <= 0 || at.cols <= 0) return;
    const std::int64_t end = at.row + at.rows, right = at.col + at.cols;
    for (auto band = cut_row(at.row);; ++band) {
      Band& held = band->second;
      if (held.end > end) cut_at(band, end);
      std::size_t i = cut_col(held, at.col);
      if (right < cols_) cut_col(held, right);
      for (; i < held.count() && held.cell(i).begin < right; ++i) {
        Cell& cell = held.cell(i);
        visit(Rect{band->first, held.end - band->first, cell.begin, cell.end - cell.begin}, cell.value);
      }
      if (held.end < end) continue;
      near_ = band;
      return;
    }
  }

  /// Forgets all cuts inside a rectangle of whole rows and gives it one value.
  void replace_rows(std::int64_t row, std::int64_t rows, T value) {
    if (rows <= 0 || cols_ <= 0) return;
    const auto first = cut_row(row);
    const auto last = row + rows < rows_ ? cut_row(row + rows) : bands_.end();
    bands_.erase(std::next(first), last);
    first->second = Band{row + rows, Cell{0, cols_, std::move(value)}, {}};
    near_ = first;
  }

 private:
  struct Cell {
    std::int64_t begin;
    std::int64_t end;
    T value;
  };
  /// Most bands have one cell, which then needs no memory of its own.
  struct Band {
    std::int64_t end;
    Cell first;
    std::vector<Cell> others;  // by column: few, so that a vector beats a tree

    std::size_t count() const { return 1 + others.size(); }
    Cell& cell(std::size_t i) { return i == 0 ? first : others[i - 1]; }
  };
  using Bands = std::map<std::int64_t, Band>;
  using Place = typename Bands::iterator;

  /// The band that holds a row: more often than not the one last used, or the one behind it.
  Place find(std::int64_t row) {
    if (near_) {
      Place band = *near_;
      if (band->first <= row && band->second.end <= row && row < rows_) ++band;
      if (band->first <= row && row < band->second.end) return band;
    }
    return std::prev(bands_.upper_bound(row));
  }

  /// Cuts a band in two, of which the second starts at a row inside it.
  Place cut_at(Place band, std::int64_t row) {
    Band lower = band->second;
    band->second.end = row;
    return bands_.emplace_hint(std::next(band), row, std::move(lower));
  }

  Place cut_row(std::int64_t row) {
    const Place band = find(row);
    return band->first == row ? band : cut_at(band, row);
  }

  std::size_t cut_col(Band& band, std::int64_t col) {
    const auto behind = std::upper_bound(band.others.begin(), band.others.end(), col,
                                         [](std::int64_t c, const Cell& held) { return c < held.begin; });
    const auto i = static_cast<std::size_t>(behind - band.others.begin());
    Cell& cell = band.cell(i);
    if (cell.begin == col) return i;
    Cell right = cell;
    right.begin = col;
    cell.end = col;
    band.others.insert(band.others.begin() + static_cast<std::ptrdiff_t>(i), std::move(right));
    return i + 1;
  }

  std::int64_t rows_, cols_;
  Bands bands_;
  std::optional<Place> near_;
};

}  // namespace shingle
