// A matrix cut into rectangular cells, each with a value. An access cuts cells at its edges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "verify/budget.hpp"

namespace shingle {

struct Rect {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t col = 0;
  std::int64_t cols = 0;
};

/// Bytes of memory that a value owns outside of itself.
template <class T>
std::int64_t bytes_beside(const T& value) {
  if constexpr (requires { value.bytes_beside(); }) return value.bytes_beside();
  return 0;
}

/// Bands of rows, each a list of cells by column. Finding a band costs O(log n), unless it is near the last
/// one used. A cut copies cells. A budget is charged for every cell that is visited, moved or made.
template <class T>
class RegionMap {
 public:
  RegionMap(std::int64_t rows, std::int64_t cols, T value, Budget* budget = nullptr)
      : rows_(rows), cols_(cols), budget_(budget) {
    if (rows <= 0 || cols <= 0) return;
    bands_.emplace(0, Band{rows, Cell{0, cols, std::move(value)}, {}});
    if (budget) keep(bytes_of(bands_.begin()->second));
  }
  RegionMap(RegionMap&& other) noexcept  // declared because a copy would keep an iterator into the original
      : rows_(other.rows_),
        cols_(other.cols_),
        bands_(std::move(other.bands_)),
        near_(other.near_),
        budget_(other.budget_),
        held_bytes_(std::exchange(other.held_bytes_, 0)) {}
  ~RegionMap() {
    if (budget_) budget_->release(Budget::cells, held_bytes_);
  }

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
        if (budget_) budget_->spend(Budget::accessed, 1);
        visit(Rect{band->first, held.end - band->first, cell.begin, cell.end - cell.begin}, cell.value);
      }
      if (held.end < end) continue;
      near_ = band;
      return;
    }
  }

  /// Replaces whole rows by one cell with one value.
  void replace_rows(std::int64_t row, std::int64_t rows, T value) {
    if (rows <= 0 || cols_ <= 0) return;
    const auto first = cut_row(row);
    const auto last = row + rows < rows_ ? cut_row(row + rows) : bands_.end();
    if (budget_)
      for (auto band = first; band != last; ++band) keep(-bytes_of(band->second));
    bands_.erase(std::next(first), last);
    first->second = Band{row + rows, Cell{0, cols_, std::move(value)}, {}};
    if (budget_) keep(bytes_of(first->second));
    near_ = first;
  }

 private:
  struct Cell {
    std::int64_t begin;
    std::int64_t end;
    T value;
  };
  /// Most bands have one cell, which is stored in place.
  struct Band {
    std::int64_t end;
    Cell first;
    std::vector<Cell> others;  // by column; few, so that a vector is faster than a tree

    std::size_t count() const { return 1 + others.size(); }
    Cell& cell(std::size_t i) { return i == 0 ? first : others[i - 1]; }
  };
  using Bands = std::map<std::int64_t, Band>;
  using Place = typename Bands::iterator;

  /// The band that holds a row. It is usually the band last used, or the next one.
  Place find(std::int64_t row) {
    if (near_) {
      Place band = *near_;
      if (band->first <= row && band->second.end <= row && row < rows_) ++band;
      if (band->first <= row && row < band->second.end) return band;
    }
    return std::prev(bands_.upper_bound(row));
  }

  /// Cuts a band in two. The second one starts at `row`, which lies inside the band.
  Place cut_at(Place band, std::int64_t row) {
    Band lower = band->second;
    if (budget_) {
      budget_->spend(Budget::cut, 1);
      budget_->spend(Budget::compared, static_cast<std::int64_t>(lower.count()));
      keep(bytes_of(lower));
    }
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
    if (budget_) {
      budget_->spend(Budget::cut, 1);
      budget_->spend(Budget::compared, static_cast<std::int64_t>(band.count() - i));
      keep(bytes_of(right));
    }
    right.begin = col;
    cell.end = col;
    band.others.insert(band.others.begin() + static_cast<std::ptrdiff_t>(i), std::move(right));
    return i + 1;
  }

  static std::int64_t bytes_of(const Cell& cell) {
    return static_cast<std::int64_t>(sizeof cell) + bytes_beside(cell.value);
  }
  static std::int64_t bytes_of(const Band& band) {
    constexpr auto node_bytes = static_cast<std::int64_t>(sizeof(Band) + 48 - sizeof(Cell));
    std::int64_t bytes = node_bytes + bytes_of(band.first);
    for (const Cell& cell : band.others) bytes += bytes_of(cell);
    return bytes;
  }
  void keep(std::int64_t bytes) {
    held_bytes_ += bytes;
    budget_->keep(Budget::cells, bytes);
  }

  std::int64_t rows_, cols_;
  Bands bands_;
  std::optional<Place> near_;
  Budget* budget_ = nullptr;
  std::int64_t held_bytes_ = 0;
};

}  // namespace shingle
