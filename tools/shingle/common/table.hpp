// Tables on a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace shingle::cli {

/// The cells of one line.
using Line = std::vector<std::string>;

/// Number of leftmost columns that hold words and are left-aligned. Numbers are right-aligned.
inline constexpr std::size_t word_columns = 3;

/// Alignment of a table's columns, and how a row folds if it is too wide for the page.
struct Columns {
  std::size_t words = word_columns;
  /// In a folded table, these columns have a line of their own, once for all rows with the same values.
  std::vector<std::size_t> keys{0, 1};
  /// In a folded table, this column is wrapped below its row. Empty: all columns are short.
  std::optional<std::size_t> prose{};
};

/// Two digits, with a star if it is above 1 (see above_one()); "-" if there is no value.
std::string fraction(double value);
/// True if a fraction rounds to more than 1. As it cannot exceed 1, its times have an error.
bool above_one(double value);

/// Max. width of tables: COLUMNS of the environment, else the terminal's width, else 80.
std::size_t page_width();

/// Prints a table line by line, with columns at least as wide as `widths`.
class Table {
 public:
  Table(std::vector<std::size_t> widths, Columns columns, std::size_t page = page_width());

  /// Call it first: rows need the names.
  std::string head(const Line& names);
  std::string row(const Line& cells);

 private:
  void fold();
  std::string parts_of(const Line& cells) const;
  std::string part_of(const Line& cells, const std::vector<std::size_t>& of) const;

  std::vector<std::size_t> widths_;
  Columns columns_;
  std::size_t page_;
  std::vector<std::vector<std::size_t>> parts_;  ///< columns of each line of a folded row; empty: not folded
  Line names_;
  Line keys_;  ///< of the previous row
};

/// All lines as one text, the head first.
std::string aligned(const std::vector<Line>& lines, const Columns& columns = {},
                    std::size_t page = page_width());

}  // namespace shingle::cli
