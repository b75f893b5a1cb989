#include "shingle/bench/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/statistics.hpp"
#include "shingle/common/rows_json.hpp"

namespace shingle::cli {
namespace {

using nlohmann::ordered_json;

const std::vector<std::size_t> widths{39, 16, 20, 8, 10, 10, 6, 7, 7, 8, 7, 9, 8};

Line head() {
  return {"operator", "M×N×K",   "mechanism", "compute", "sequential", "overlapped", "spread",
          "speedup",  "overlap", "roofline",  "TFLOP/s", "predicted",  "verified"};
}

/// For example "auto (signal)", if `auto` chose the mechanism.
std::string called(const BenchRow& row) {
  return row.row.choice ? fmt::format("{} ({})", row.contender, row.row.mechanism) : row.contender;
}

ordered_json json_of(const std::vector<double>& samples_us) {
  if (samples_us.empty()) return {};
  const Spread spread = spread_of(samples_us);
  return {{"median_us", spread.median}, {"p25_us", spread.p25},  {"p75_us", spread.p75},
          {"min_us", spread.least},     {"max_us", spread.most}, {"samples_us", samples_us}};
}

}  // namespace

double BenchRow::tflops() const {
  return row.ran() ? flops_of(row.named.problem()) / row.time->overlapped_us * 1e-6 : 0;
}

std::optional<double> BenchRow::roofline_fraction() const {
  if (!row.ran() || !predicted || row.time->gemm_us <= 0) return std::nullopt;
  return std::max(row.time->gemm_us, predicted->wire_us) / row.time->overlapped_us;
}

std::optional<double> BenchRow::prediction_error() const {
  if (!row.ran() || !predicted) return std::nullopt;
  return (predicted->us - row.time->overlapped_us) / row.time->overlapped_us;
}

Table bench_table() {
  return {widths, {.keys = {0, 1, 3}}};
}

std::string bench_head(Table& table) {
  return table.head(head());
}

std::string bench_line(Table& table, const BenchRow& row) {
  return table.row(bench_lines({row}).at(1));
}

bool noisy(const BenchRow& row) {
  const std::optional<double> roofline = row.roofline_fraction();
  return row.row.ran() && (noisy(row.row) || (roofline && above_one(*roofline)));
}

std::vector<Line> bench_lines(const std::vector<BenchRow>& rows) {
  std::vector<Line> lines{head()};
  for (const BenchRow& row : rows) {
    const Problem& p = row.row.named.problem();
    const std::string& name_in_layer = row.row.named.name;
    Line line{
        name_in_layer.empty() ? std::string(name(p.op)) : fmt::format("{} {}", name_in_layer, name(p.op)),
        fmt::format("{}×{}×{}", p.m, p.n, p.k), called(row)};
    if (row.row.ran()) {
      const Measurement& time = *row.row.time;
      const std::optional<double> roofline = row.roofline_fraction();
      line.push_back(time.gemm_us > 0 ? format_us(time.gemm_us) : "-");
      line.push_back(format_us(time.sequential_us));
      line.push_back(format_us(time.overlapped_us));
      line.push_back(fmt::format("{:.1f}%", 100 * time.spread));
      line.push_back(fmt::format("{:.2f}x", time.speedup()));
      line.push_back(fraction(time.overlap_efficiency()));
      line.push_back(roofline ? fraction(*roofline) : "-");
      line.push_back(fmt::format("{:.{}f}", row.tflops(), row.tflops() < 10 ? 2 : 0));
      line.push_back(row.predicted ? format_us(row.predicted->us) : "-");
      line.push_back(row.checked.empty() ? "-" : row.row.check.passed ? "yes" : "NO");
    } else {
      line.resize(widths.size(), "-");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

ordered_json json_of(const BenchRow& row) {
  ordered_json object = json_of(row.row);
  const Problem& p = row.row.named.problem();
  const auto number = [](std::optional<double> value) {
    return value ? ordered_json(*value) : ordered_json();
  };
  object["contender"] = row.contender;
  if (row.row.ran() && row.checked.empty()) object["verified"] = nullptr;
  object["checked"] = row.checked.empty() ? ordered_json() : ordered_json(row.checked);
  object["setup_s"] = row.setup_s;
  object["predicted_us"] = row.predicted ? ordered_json(row.predicted->us) : ordered_json();
  object["predicted_sequential_us"] =
      row.predicted ? ordered_json(row.predicted->sequential_us) : ordered_json();
  object["prediction_error"] = number(row.prediction_error());
  object["roofline_fraction"] = number(row.roofline_fraction());
  flag_noise(object);
  if (!row.row.ran()) return object;
  const Measurement& time = *row.row.time;
  object["compute_us"] = time.gemm_us;
  object["tflops"] = row.tflops();
  object["compute_tflops"] =
      time.gemm_us > 0 ? ordered_json(flops_of(p) / time.gemm_us * 1e-6) : ordered_json();
  object["memory_bytes"] = row.memory_bytes;
  object["memory_of_output"] =
      row.memory_bytes / (static_cast<double>(p.m) * static_cast<double>(p.out_cols()) *
                          static_cast<double>(size_bytes(p.dtype)));
  object["rounds"] = time.rounds;
  object["sequential"] = json_of(time.sequential_samples_us);
  object["overlapped"] = json_of(time.overlapped_samples_us);
  object["compute"] = json_of(time.gemm_samples_us);
  return object;
}

}  // namespace shingle::cli
