#include "shingle/table.hpp"

#include <algorithm>

namespace shingle::cli {
namespace {

/// Columns on a terminal: UTF-8 continuation bytes take none.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string aligned(const std::vector<Line>& lines, std::size_t words) {
  std::vector<std::size_t> widest(lines.at(0).size());
  for (const Line& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widest[i] = std::max(widest[i], width(line[i]));
  std::string text;
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool last = i + 1 == line.size(), left = i < words || lines[0][i] == "verified";
      const std::string space(widest[i] - width(line[i]), ' ');
      text += left ? line[i] + (last ? "" : space) : space + line[i];
      if (!last) text += "  ";
    }
    text += '\n';
  }
  return text;
}

}  // namespace shingle::cli
