#include "shingle/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shingle::cli {
namespace {

/// Columns on a terminal: UTF-8 continuation bytes take none.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string fraction(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}", value) : "-";
}

std::string aligned(const std::vector<Line>& lines, std::size_t words) {
  std::vector<std::size_t> widest(lines.at(0).size());
  for (const Line& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widest[i] = std::max(widest[i], width(line[i]));
  std::string text;
  // What is said of results reads from the left, too.
  if (lines[0].back() == "verified") widest.back() = 0;
  for (const Line& line : lines) text += padded(line, widest, words);
  return text;
}

std::string padded(const Line& line, const std::vector<std::size_t>& widths, std::size_t words) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::size_t taken = width(line[i]);
    const std::string space(widths[i] > taken ? widths[i] - taken : 0, ' ');
    const bool last = i + 1 == line.size(), left = i < words;
    text += left ? line[i] + (last ? "" : space) : space + line[i];
    if (!last) text += "  ";
  }
  return text + '\n';
}

}  // namespace shingle::cli
