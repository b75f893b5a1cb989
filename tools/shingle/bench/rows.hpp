// The rows of `bench`: those of `run` with samples, predictions and memory, and what they amount to.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shingle/common/rows.hpp"

namespace shingle::cli {

struct BenchRow {
  Row row;
  std::string contender;               ///< as it was asked for; "sequential" of the baseline
  std::optional<Metrics> predicted{};  ///< where the machine has figures to predict from
  double memory_bytes = 0;             ///< of the operator, on the rank that has most
  std::string checked{};               ///< which part of the results, and when
  double setup_s = 0;                  ///< of the shape: inputs, reference, baseline; of a contender: its own

  /// Whether the contender serves the shape at all.
  bool planned() const { return !row.params.empty(); }
  /// Ran, with a right result.
  bool counts() const { return row.ran() && row.check.passed; }
  double tflops() const;
  /// max(computation alone, bytes on the wire at the best rate of a link) / time: 1 is the best there could
  /// be. The wire's time is the machine's figure; empty without one, or without a computation.
  std::optional<double> roofline_fraction() const;
  /// (predicted − measured) / measured; empty where not both are there.
  std::optional<double> prediction_error() const;
};

/// The table, whose lines come one by one.
Table bench_table();
std::string bench_head(Table& table);
std::string bench_line(Table& table, const BenchRow& row);
/// Whether a fraction of the row is above 1, which no plan can reach.
bool noisy(const BenchRow& row);
std::vector<Line> bench_lines(const std::vector<BenchRow>& rows);

/// The keys of `run`, and more (docs/reference/benchmarks.md).
nlohmann::ordered_json json_of(const BenchRow& row);

/// What a contender's results over a class of shapes amount to. Those that broke or whose result was wrong
/// count in `failed` alone, those that the contender does not serve nowhere.
struct ClassSummary {
  std::string contender;
  std::string shapes;  ///< "all", "gemm+allreduce, M ≥ 4096, K ≥ 3584"
  std::size_t count = 0, failed = 0;
  double sequential_us = 0, us = 0;  ///< of all shapes together
  double geomean = 0, least = 0;     ///< speed-ups
  std::string slowest{};             ///< the shape of the least
  double as_good = 0;                ///< share of the shapes with a speed-up of 0.98 or more
};
/// By contender: all shapes, and of each operator those with M ≥ 4096 and K ≥ 3584, where communication and
/// computation are worth overlapping.
std::vector<ClassSummary> summarize(const std::vector<BenchRow>& rows);

/// Errors of predictions, of all rows that have one.
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
