// Tables on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace shingle::cli {

/// The cells of one line.
using Line = std::vector<std::string>;

/// Columns from the left that are words and begin at the left; numbers end at the right.
inline constexpr std::size_t word_columns = 3;

/// With two digits; "-" where there is none.
std::string fraction(double value);

/// The lines below each other, the head first.
std::string aligned(const std::vector<Line>& lines, std::size_t words = word_columns);

/// One line with columns at least so wide, for tables whose lines come one by one.
std::string padded(const Line& line, const std::vector<std::size_t>& widths,
                   std::size_t words = word_columns);

}  // namespace shingle::cli
