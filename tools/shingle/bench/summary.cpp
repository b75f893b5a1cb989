// Summaries of the rows of `bench`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/statistics.hpp"
#include "report/report.hpp"
#include "shingle/bench/rows.hpp"

namespace shingle::cli {
namespace {

constexpr std::int64_t large_m = 4096, large_k = 3584;
constexpr double good_enough = 0.98;

template <class Of>
ClassSummary summary_of(const std::string& contender, const std::string& shapes,
                        const std::vector<BenchRow>& rows, Of of) {
  ClassSummary sum{.contender = contender, .shapes = shapes};
  std::vector<double> speedups;
  for (const BenchRow& row : rows) {
    if (row.contender != contender || !row.planned() || !of(row)) continue;
    if (!row.counts()) {
      ++sum.failed;
      continue;
    }
    const Measurement& time = *row.row.time;
    sum.sequential_us += time.sequential_us;
    sum.us += time.overlapped_us;
    if (speedups.empty() || time.speedup() < sum.least) {
      sum.least = time.speedup();
      sum.slowest = describe(row.row.named);
    }
    speedups.push_back(time.speedup());
  }
  sum.count = speedups.size();
  if (speedups.empty()) return sum;
  sum.geomean = geometric_mean(speedups);
  sum.as_good =
      static_cast<double>(std::ranges::count_if(speedups, [](double s) { return s >= good_enough; })) /
      static_cast<double>(speedups.size());
  return sum;
}

/// Distinct keys in order of first appearance.
template <class Key>
auto distinct(const std::vector<BenchRow>& rows, Key key) {
  std::vector<std::decay_t<decltype(key(rows[0]))>> found;
  for (const BenchRow& row : rows)
    if (std::ranges::find(found, key(row)) == found.end()) found.push_back(key(row));
  return found;
}

/// Operator, and the name of its routing if it routes.
std::pair<Op, std::string> kind_of(const BenchRow& row) {
  const NamedWork& named = row.row.named;
  return {named.problem().op, named.problem().traits().routes() ? named.name : ""};
}

}  // namespace

std::vector<ClassSummary> summarize(const std::vector<BenchRow>& rows) {
  std::vector<ClassSummary> classes;
  for (const std::string& contender : distinct(rows, [](const BenchRow& row) { return row.contender; })) {
    if (contender == name(Mechanism::sequential)) continue;  // its speed-up over itself says nothing
    classes.push_back(summary_of(contender, "all", rows, [](const BenchRow&) { return true; }));
    for (const auto& [op, routing] : distinct(rows, kind_of)) {
      ClassSummary sum = summary_of(
          contender,
          fmt::format("{}{}{}, M≥{}, K≥{}", name(op), routing.empty() ? "" : " ", routing, large_m, large_k),
          rows, [&](const BenchRow& row) {
            const Problem& p = row.row.named.problem();
            return kind_of(row) == std::pair(op, routing) && p.m >= large_m && p.k >= large_k;
          });
      if (sum.count + sum.failed > 0) classes.push_back(std::move(sum));
    }
  }
  return classes;
}

std::optional<PredictionSummary> summarize_predictions(const std::vector<BenchRow>& rows) {
  std::vector<double> errors;
  for (const BenchRow& row : rows)
    if (const auto error = row.prediction_error(); error && row.counts()) errors.push_back(std::abs(*error));
  if (errors.empty()) return std::nullopt;
  return PredictionSummary{errors.size(), quantile(errors, 0.5), quantile(errors, 0.9), quantile(errors, 1)};
}

std::vector<Line> summary_lines(const std::vector<ClassSummary>& classes) {
  std::vector<Line> lines{
      {"mechanism", "shapes", "count", "failed", "sequential", "overlapped", "geomean", "least", "≥0.98x"}};
  for (const ClassSummary& sum : classes) {
    Line line{sum.contender, sum.shapes, fmt::format("{}", sum.count), fmt::format("{}", sum.failed)};
    if (sum.count > 0)
      line.insert(line.end(),
                  {format_us(sum.sequential_us), format_us(sum.us), fmt::format("{:.3f}x", sum.geomean),
                   fmt::format("{:.3f}x", sum.least), fmt::format("{:.0f}%", 100 * sum.as_good)});
    line.resize(lines[0].size(), "-");
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string to_text(const PredictionSummary& errors) {
  return fmt::format("|error| of {} predictions: median {:.1f} %, p90 {:.1f} %, maximum {:.1f} %",
                     errors.count, 100 * errors.median, 100 * errors.p90, 100 * errors.most);
}

nlohmann::ordered_json json_of(const ClassSummary& sum) {
  nlohmann::ordered_json object{
      {"contender", sum.contender}, {"shapes", sum.shapes}, {"count", sum.count}, {"failed", sum.failed}};
  if (sum.count == 0) return object;
  object["sequential_us"] = sum.sequential_us;
  object["overlapped_us"] = sum.us;
  object["geomean"] = sum.geomean;
  object["least"] = sum.least;
  object["slowest"] = sum.slowest;
  object["share_as_good"] = sum.as_good;
  return object;
}

nlohmann::ordered_json json_of(const PredictionSummary& errors) {
  return {{"count", errors.count}, {"median", errors.median}, {"p90", errors.p90}, {"max", errors.most}};
}

}  // namespace shingle::cli
