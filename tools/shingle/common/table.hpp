// Tables on a terminal.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace shingle::cli {

/// The cells of one line.
using Line = std::vector<std::string>;

/// Columns from the left that are words and begin at the left; numbers end at the right.
inline constexpr std::size_t word_columns = 3;

/// How the columns of a table are read, and how they fold where one line is too wide for the page.
struct Columns {
  std::size_t words = word_columns;
  /// Folded, these stand on a line of their own, once for all rows that share them.
  std::vector<std::size_t> keys{0, 1};
  /// Folded, this one stands below its row, wrapped; none: all columns are short.
  std::optional<std::size_t> prose{};
};

/// With two digits, and a star where it is above 1 (see above_one()); "-" where there is none.
std::string fraction(double value);
/// Whether a fraction that cannot be above 1 is shown as more: an error of the times it is made of.
bool above_one(double value);

/// The width that tables keep to: COLUMNS of the environment, or the terminal's, else 80.
std::size_t page_width();

/// The lines of a table one by one, with columns at least as wide as `widths`.
class Table {
 public:
  Table(std::vector<std::size_t> widths, Columns columns, std::size_t page = page_width());

  /// First of all: rows need the names.
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
  Line keys_;  ///< of the row before
};

/// The lines below each other, the head first.
std::string aligned(const std::vector<Line>& lines, const Columns& columns = {},
                    std::size_t page = page_width());

}  // namespace shingle::cli
