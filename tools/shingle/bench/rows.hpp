// The rows of `bench`: those of `run` with samples, predictions and memory, and their summaries.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shingle/common/rows.hpp"

namespace shingle::cli {

struct BenchRow {
  Row row;
  std::string contender;               ///< as on the command line; "sequential" for the baseline
  std::optional<Metrics> predicted{};  ///< only if the machine has figures to predict from
  double memory_bytes = 0;             ///< of the operator, max. over ranks
  std::string checked{};               ///< which part of the results was checked, and when
  double setup_s = 0;                  ///< shape's inputs, reference and baseline; or the contender's own

  /// True if the contender serves the shape.
  bool planned() const { return !row.params.empty(); }
  /// True if it ran with a correct result.
  bool counts() const { return row.ran() && row.check.passed; }
  double tflops() const;
  /// max(computation alone, bytes on the wire at the best rate of a link) / time; 1 is the optimum. The
  /// machine's profile supplies the link's rate. Empty without that rate or without a computation.
  std::optional<double> roofline_fraction() const;
  /// (predicted − measured) / measured. Empty unless both are known.
  std::optional<double> prediction_error() const;
};

/// The table of results, printed line by line.
Table bench_table();
std::string bench_head(Table& table);
std::string bench_line(Table& table, const BenchRow& row);
/// True if a fraction of the row is above 1, which no plan can reach.
bool noisy(const BenchRow& row);
std::vector<Line> bench_lines(const std::vector<BenchRow>& rows);

/// The keys of `run`, and more (docs/reference/benchmarks.md).
nlohmann::ordered_json json_of(const BenchRow& row);

/// Summary of a contender's results over a class of shapes. Failed and wrong results count in `failed` only.
/// Shapes that the contender does not serve do not count.
struct ClassSummary {
  std::string contender;
  std::string shapes;  ///< "all", or such as "gemm+allreduce, M ≥ 4096, K ≥ 3584"
  std::size_t count = 0, failed = 0;
  double sequential_us = 0, us = 0;  ///< sums over shapes
  double geomean = 0, least = 0;     ///< speed-ups
  std::string slowest{};             ///< shape with the least speed-up
  double as_good = 0;                ///< share of shapes with a speed-up of 0.98 or more
};
/// Summaries by contender: all shapes, and each operator's shapes with M ≥ 4096 and K ≥ 3584. For those,
/// communication and computation are worth overlapping.
std::vector<ClassSummary> summarize(const std::vector<BenchRow>& rows);

/// Prediction errors over all rows that have one.
struct PredictionSummary {
  std::size_t count = 0;
  double median = 0, p90 = 0, most = 0;
};
std::optional<PredictionSummary> summarize_predictions(const std::vector<BenchRow>& rows);

std::vector<Line> summary_lines(const std::vector<ClassSummary>& classes);
std::string to_text(const PredictionSummary& errors);
nlohmann::ordered_json json_of(const ClassSummary& summary);
nlohmann::ordered_json json_of(const PredictionSummary& errors);

}  // namespace shingle::cli
