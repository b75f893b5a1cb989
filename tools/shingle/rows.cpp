#include "shingle/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "shingle/plan/json.hpp"

namespace shingle::cli {
namespace {

constexpr std::size_t columns = 9;
using Line = std::array<std::string, columns>;

constexpr const char* heads[columns] = {"operator", "M×N×K",   "mechanism", "sequential", "overlapped",
                                        "speedup",  "overlap", "max error", "verified"};

Line line_of(const Row& row) {
  const Problem& p = row.named.problem;
  Line line;
  line[0] =
      row.named.name.empty() ? std::string(name(p.op)) : fmt::format("{} {}", row.named.name, name(p.op));
  line[1] = p.multiplies() ? fmt::format("{}×{}×{}", p.m, p.n, p.k) : fmt::format("{}×{}", p.m, p.n);
  if (p.chains()) line[1] += fmt::format(" ({})", p.inner);
  line[2] = row.mechanism;
  if (!row.ran()) {
    std::fill(line.begin() + 3, line.end(), "-");
    return line;
  }
  const double efficiency = row.time->overlap_efficiency();
  line[3] = format_us(row.time->sequential_us);
  line[4] = format_us(row.time->overlapped_us);
  line[5] = fmt::format("{:.2f}x", row.time->speedup());
  line[6] = std::isfinite(efficiency) ? fmt::format("{:.2f}", efficiency) : "-";
  line[7] = fmt::format("{:.1e}", row.check.max_error);
  line[8] = row.check.passed ? "yes" : "NO";
  return line;
}

/// Columns on a terminal: UTF-8 continuation bytes take none.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

nlohmann::ordered_json json_of(const Row& row) {
  const Problem& p = row.named.problem;
  nlohmann::ordered_json object;
  object["op"] = name(p.op);
  object["m"] = p.m;
  object["n"] = p.n;
  object["k"] = p.k;
  if (p.chains()) object["inner"] = p.inner;
  object["world"] = p.world;
  object["dtype"] = name(p.dtype);
  object["backend"] = row.backend;
  object["mechanism"] = row.mechanism;
  object["params"] =
      row.params.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(row.params);
  const auto measured = [&](const char* key, double value) {
    object[key] = row.ran() ? nlohmann::ordered_json(value)
                            : nlohmann::ordered_json();  // a value that is not finite is null, too
  };
  const Measurement time = row.time.value_or(Measurement{});
  measured("sequential_us", time.sequential_us);
  measured("overlapped_us", time.overlapped_us);
  measured("speedup", time.speedup());
  measured("overlap_efficiency", time.overlap_efficiency());
  measured("max_error", row.check.max_error);
  measured("tolerance", row.check.tolerance);
  object["verified"] = row.ran() && row.check.passed;
  object["reason"] = row.reason.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(row.reason);
  return object;
}

}  // namespace

std::string to_table(const std::vector<Row>& rows) {
  std::vector<Line> lines(1);
  std::copy(std::begin(heads), std::end(heads), lines[0].begin());
  for (const Row& row : rows) lines.push_back(line_of(row));
  std::string text;
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < columns; ++i) {
      std::size_t widest = 0;
      for (const Line& other : lines) widest = std::max(widest, width(other[i]));
      const std::string space(widest - width(line[i]), ' ');
      const bool words = i < 3 || i + 1 == columns;
      text += words ? line[i] + (i + 1 < columns ? space : "") : space + line[i];
      if (i + 1 < columns) text += "  ";
    }
    text += '\n';
  }
  for (const Row& row : rows)
    if (!row.reason.empty()) text += fmt::format("{} {}: {}\n", line_of(row)[0], row.mechanism, row.reason);
  return text;
}

std::string to_json(const std::vector<Row>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& row : rows) array.push_back(json_of(row));
  return array.dump(1) + "\n";
}

std::string params_json(const Plan& plan) {
  const auto json = nlohmann::ordered_json::parse(shingle::to_json(plan, -1));
  return json.contains("params") ? json["params"].dump() : "{}";
}

}  // namespace shingle::cli
