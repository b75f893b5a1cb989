#include "shingle/common/table.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace shingle::cli {
namespace {

constexpr std::size_t gap = 2;

/// Width in terminal columns. UTF-8 continuation bytes take none.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// Wraps `text` to lines of at most `room` columns. It breaks after spaces, and within long words after
/// commas.
std::vector<std::string> wrapped(const std::string& text, std::size_t room) {
  std::vector<std::string> lines{""};
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    const std::size_t space = std::min(text.find(' ', begin), text.size());
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const bool long_word = width(text.substr(begin, space - begin)) > room;
    end = std::min((long_word ? std::min(space, comma) : space) + 1, text.size());
    const std::string piece = text.substr(begin, end - begin);
    if (!lines.back().empty() && width(lines.back()) + width(piece) > room + 1) lines.emplace_back();
    lines.back() += piece;
  }
  for (std::string& line : lines)
    if (line.ends_with(' ')) line.pop_back();
  return lines;
}

std::size_t positive(const char* text) {
  return text == nullptr ? 0 : static_cast<std::size_t>(std::max(std::atol(text), 0L));
}

}  // namespace

bool above_one(double value) {
  return std::isfinite(value) && value >= 1.005;
}

std::string fraction(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}{}", value, above_one(value) ? "*" : "") : "-";
}

std::size_t page_width() {
  constexpr std::size_t usual = 80;
  if (const std::size_t asked = positive(std::getenv("COLUMNS")); asked > 0) return asked;
  winsize size{};
  const bool terminal = isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return terminal && size.ws_col > 0 ? size.ws_col : usual;
}

Table::Table(std::vector<std::size_t> widths, Columns columns, std::size_t page)
    : widths_(std::move(widths)), columns_(std::move(columns)), page_(page) {
  std::size_t whole = gap * (widths_.size() - 1);
  for (const std::size_t one : widths_) whole += one;
  if (whole > page_) fold();
}

void Table::fold() {
  parts_.emplace_back();
  std::size_t taken = 0;
  for (std::size_t i = 0; i < widths_.size(); ++i) {
    if (i == columns_.prose || std::ranges::find(columns_.keys, i) != columns_.keys.end()) continue;
    if (!parts_.back().empty() && taken + gap + widths_[i] > page_) parts_.emplace_back(), taken = gap;
    taken += gap + widths_[i];
    parts_.back().push_back(i);
  }
}

std::string Table::head(const Line& names) {
  names_ = names;
  if (parts_.empty()) return part_of(names, {});
  return part_of(names, columns_.keys) + parts_of(names);
}

std::string Table::row(const Line& cells) {
  if (parts_.empty()) return part_of(cells, {});
  Line keys;
  for (const std::size_t i : columns_.keys) keys.push_back(cells[i]);
  std::string text = keys == keys_ ? "" : part_of(cells, columns_.keys);
  keys_ = std::move(keys);
  text += parts_of(cells);
  if (!columns_.prose || cells[*columns_.prose].empty() || cells[*columns_.prose] == "-") return text;
  const std::string indent(2 * gap, ' ');
  for (const std::string& line :
       wrapped(fmt::format("{}: {}", names_[*columns_.prose], cells[*columns_.prose]), page_ - indent.size()))
    text += indent + line + '\n';
  return text;
}

std::string Table::parts_of(const Line& cells) const {
  std::string text;
  for (std::size_t i = 0; i < parts_.size(); ++i)
    text += std::string(i == 0 ? gap : 2 * gap, ' ') + part_of(cells, parts_[i]);
  return text;
}

/// The cells of the columns `of`, as one line.
std::string Table::part_of(const Line& cells, const std::vector<std::size_t>& of) const {
  std::string text;
  const std::size_t count = of.empty() ? cells.size() : of.size();
  for (std::size_t at = 0; at < count; ++at) {
    const std::size_t i = of.empty() ? at : of[at];
    const std::size_t taken = width(cells[i]);
    const std::string space(widths_[i] > taken ? widths_[i] - taken : 0, ' ');
    // The `verified` column holds words, so it is left-aligned too.
    const bool left = i < columns_.words || names_.at(i) == "verified";
    text += left ? cells[i] + space : space + cells[i];
    if (at + 1 < count) text += std::string(gap, ' ');
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

std::string aligned(const std::vector<Line>& lines, const Columns& columns, std::size_t page) {
  std::vector<std::size_t> widest(lines.at(0).size());
  for (const Line& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widest[i] = std::max(widest[i], width(line[i]));
  Table table(std::move(widest), columns, page);
  std::string text = table.head(lines[0]);
  for (std::size_t i = 1; i < lines.size(); ++i) text += table.row(lines[i]);
  return text;
}

}  // namespace shingle::cli
