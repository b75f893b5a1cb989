// shingle compare: compares results with other results, and predictions with measurements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "shingle/base/units.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/page.hpp"
#include "shingle/common/rows.hpp"
#include "shingle/compare/comparison.hpp"

namespace shingle::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t params_column = 5;  // of tables with params: the last word column

/// Source of the rows that have a time.
std::string source_of(const std::vector<ResultRow>& rows) {
  const auto any = [&](bool predicted) {
    return std::ranges::any_of(rows,
                               [&](const ResultRow& row) { return row.us && row.predicted == predicted; });
  };
  if (any(true)) return any(false) ? "predicted and measured" : "predicted";
  return any(false) ? "measured" : "no times";
}

/// True if rows differ in their params only, so that the table must show them.
bool shows_params(const Comparison& comparison) {
  return std::ranges::any_of(comparison.matches, &Match::several);
}

Columns columns_of(const Comparison& comparison) {
  Columns columns{.words = params_column, .keys = {0, 1, 2, 3}};
  if (shows_params(comparison)) ++columns.words, columns.prose = params_column;
  return columns;
}

Line line_of(const Match& match) {
  const auto time = [](const ResultRow& row) { return row.us ? format_us(*row.us) : "-"; };
  const auto error = match.error();
  return {match.a.op,
          match.a.size(),
          fmt::format("{}", match.a.world),
          match.a.dtype,
          match.a.mechanism,
          match.several ? params_text(match.a.params) : "",
          time(match.a),
          time(match.b),
          match.timed() ? fmt::format("{:.3f}", match.ratio()) : "-",
          error ? fmt::format("{:+.1f} %", 100 * *error) : "-"};
}

std::vector<Line> lines_of(const Comparison& comparison) {
  std::vector<Line> lines{
      {"operator", "M×N×K", "ranks", "type", "mechanism", "params", "A", "B", "B/A", "error"}};
  for (const Match& match : comparison.matches) lines.push_back(line_of(match));
  if (!shows_params(comparison))
    for (Line& line : lines) line.erase(line.begin() + params_column);
  return lines;
}

std::string describe(const ResultRow& row) {
  const std::string params = params_text(row.params);
  return fmt::format("{} {} {} ranks {} {}{}", row.op, row.size(), row.world, row.dtype, row.mechanism,
                     params.empty() ? "" : " " + params);
}

/// Notes below the table, one per line.
std::vector<std::string> notes(const Comparison& comparison, const CompareFlags& flags) {
  std::vector<std::string> lines;
  if (const auto all = comparison.ratios(); !all.empty())
    lines.push_back(fmt::format("B/A of {}: median {:.3f}, p90 {:.3f}, maximum {:.3f}", all.size(),
                                quantile(all, 0.5), quantile(all, 0.9), quantile(all, 1)));
  if (const auto all = comparison.errors(); !all.empty())
    lines.push_back(fmt::format("|error| of {} predictions: median {:.1f} %, p90 {:.1f} %, maximum {:.1f} %",
                                all.size(), 100 * quantile(all, 0.5), 100 * quantile(all, 0.9),
                                100 * quantile(all, 1)));
  for (const ResultRow& row : comparison.only_a) lines.push_back("only in A: " + describe(row));
  for (const ResultRow& row : comparison.only_b) lines.push_back("only in B: " + describe(row));
  for (const Match& match : comparison.matches) {
    if (!match.a.us && !match.a.reason.empty())
      lines.push_back(fmt::format("no time in A: {}: {}", describe(match.a), match.a.reason));
    if (!match.b.us && !match.b.reason.empty())
      lines.push_back(fmt::format("no time in B: {}: {}", describe(match.b), match.b.reason));
    if (flags.threshold && match.slower_by(*flags.threshold))
      lines.push_back(
          match.b.us ? fmt::format("slower by {:.1f} %: {}", 100 * (match.ratio() - 1), describe(match.b))
                     : fmt::format("ran in A alone: {}", describe(match.b)));
  }
  return lines;
}

std::vector<std::string> head(const CompareFlags& flags, const std::vector<ResultRow>& a,
                              const std::vector<ResultRow>& b) {
  return {fmt::format("A: {} ({})", flags.a, source_of(a)), fmt::format("B: {} ({})", flags.b, source_of(b))};
}

ordered_json json_of(const ResultRow& row) {
  ordered_json object{{"op", row.op}, {"m", row.m}, {"n", row.n}, {"k", row.k}};
  if (row.inner > 0) object["inner"] = row.inner;
  object["world"] = row.world;
  object["dtype"] = row.dtype;
  object["mechanism"] = row.mechanism;
  object["params"] = row.params.empty() ? ordered_json() : ordered_json::parse(row.params);
  return object;
}

ordered_json number(std::optional<double> value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json spread(const std::vector<double>& values) {
  if (values.empty()) return {};
  return {{"count", values.size()},
          {"median", quantile(values, 0.5)},
          {"p90", quantile(values, 0.9)},
          {"max", quantile(values, 1)}};
}

std::string to_json(const Comparison& comparison, const CompareFlags& flags) {
  ordered_json whole{{"a", flags.a}, {"b", flags.b}};
  whole["rows"] = whole["only_a"] = whole["only_b"] = ordered_json::array();
  for (const Match& match : comparison.matches) {
    ordered_json row = json_of(match.a);
    row["params_b"] = match.b.params.empty() ? ordered_json() : ordered_json::parse(match.b.params);
    row["a_us"] = number(match.a.us);
    row["b_us"] = number(match.b.us);
    row["ratio"] = match.timed() ? ordered_json(match.ratio()) : ordered_json();
    row["error"] = number(match.error());
    if (flags.threshold) row["slower"] = match.slower_by(*flags.threshold);
    whole["rows"].push_back(std::move(row));
  }
  for (const ResultRow& row : comparison.only_a) whole["only_a"].push_back(json_of(row));
  for (const ResultRow& row : comparison.only_b) whole["only_b"].push_back(json_of(row));
  whole["ratio"] = spread(comparison.ratios());
  whole["absolute_error"] = spread(comparison.errors());
  return whole.dump(1) + "\n";
}

void add_speedups(const std::vector<ResultRow>& rows, const std::string& file, Report& page) {
  std::vector<SizedSpeedup> sized;
  for (const ResultRow& row : rows)
    if (row.speedup && row.mechanism != name(Mechanism::sequential))
      sized.push_back(
          {fmt::format("{}: {}, {}, {} ranks, {}", file, row.op, row.mechanism, row.world, row.dtype),
           {static_cast<double>(row.m) * static_cast<double>(row.n), static_cast<double>(row.k),
            *row.speedup}});
  std::ranges::move(heat_maps(sized), std::back_inserter(page.heat_maps));
}

Report page_of(const Comparison& comparison, const CompareFlags& flags, const std::vector<ResultRow>& a,
               const std::vector<ResultRow>& b) {
  Report page = make_page("Comparison", head(flags, a, b));
  std::vector<Line> lines = lines_of(comparison);
  ReportTable table{.title = "Results",
                    .head = lines[0],
                    .words = columns_of(comparison).words,
                    .notes = notes(comparison, flags)};
  table.rows.assign(std::make_move_iterator(lines.begin() + 1), std::make_move_iterator(lines.end()));
  page.tables.push_back(std::move(table));
  for (const Match& match : comparison.matches)
    if (match.error())
      page.predictions.push_back({describe(match.a), match.a.predicted ? *match.a.us : *match.b.us,
                                  match.a.predicted ? *match.b.us : *match.a.us});
  add_speedups(a, "A", page);
  add_speedups(b, "B", page);
  return page;
}

}  // namespace

int compare(const CompareFlags& flags, const ProcessLaunch& launch) {
  if (!launch.speaks()) return 0;
  require_writable({{"--html", flags.html}});
  const std::vector<ResultRow> a = read_results(flags.a), b = read_results(flags.b);
  const Comparison comparison = compare(a, b);
  if (!flags.html.empty()) write_file_atomically(flags.html, to_html(page_of(comparison, flags, a, b)));
  if (flags.format == Format::json) {
    fmt::print("{}", to_json(comparison, flags));
  } else {
    for (const std::string& line : head(flags, a, b)) fmt::print("{}\n", line);
    fmt::print("{}", aligned(lines_of(comparison), columns_of(comparison)));
    for (const std::string& line : notes(comparison, flags)) fmt::print("{}\n", line);
  }
  const bool slower = flags.threshold && std::ranges::any_of(comparison.matches, [&](const Match& match) {
                        return match.slower_by(*flags.threshold);
                      });
  const bool any = std::ranges::any_of(comparison.matches, &Match::timed);
  return slower || !any ? 1 : 0;
}

}  // namespace shingle::cli
