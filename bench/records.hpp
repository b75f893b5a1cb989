// Reads a record of bench/results: a CSV below lines of notes, as scripts/records.py makes it of the JSON
// that a benchmark writes.
#pragma once

#include <fmt/format.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "shingle/base/error.hpp"

namespace shingle::bench {

/// A line of a record: its cells by their columns, and the notes, which hold for every line.
class RecordRow {
 public:
  explicit RecordRow(std::map<std::string, std::string> cells) : cells_(std::move(cells)) {}

  bool has(const std::string& column) const { return cells_.contains(column); }
  const std::string& text(const std::string& column) const {
    const auto at = cells_.find(column);
    if (at == cells_.end()) throw InvalidArgument(fmt::format("the record has no column '{}'", column));
    return at->second;
  }
  double number(const std::string& column) const {
    const std::string& cell = text(column);
    std::size_t end = 0;
    try {
      const double value = std::stod(cell, &end);
      if (end == cell.size()) return value;
    } catch (const std::logic_error&) {  // says the same
    }
    throw InvalidArgument(fmt::format("the record's column '{}' has '{}'; expected a number", column, cell));
  }

 private:
  std::map<std::string, std::string> cells_;
};

/// The cells of a line; one in quotes may hold commas, and two quotes for one.
inline std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  return cells;
}

/// Throws InvalidArgument, with the file, if it is no record.
inline std::vector<RecordRow> read_record(const std::string& path) {
  std::istringstream lines(read_file(path, 1 << 20));
  std::map<std::string, std::string> notes;
  std::vector<std::string> columns;
  std::vector<RecordRow> rows;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("# ") && columns.empty()) {
      if (colon != std::string::npos) notes[line.substr(2, colon - 2)] = line.substr(colon + 2);
      continue;
    }
    const std::vector<std::string> cells = csv_cells(line);
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (cells.size() != columns.size())
      throw InvalidArgument(fmt::format("{}: a line has {} cells, the header {}: {}", path, cells.size(),
                                        columns.size(), line));
    std::map<std::string, std::string> row = notes;
    for (std::size_t i = 0; i < cells.size(); ++i) row[columns[i]] = cells[i];
    rows.emplace_back(std::move(row));
  }
  if (!notes.contains("command") || rows.empty())
    throw InvalidArgument(
        fmt::format("{} is no record; scripts/records.py add makes one of a benchmark's JSON", path));
  return rows;
}

}  // namespace shingle::bench
