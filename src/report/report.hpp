// Reports: runs, predictions and comparisons as one HTML page in a single file.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shingle/machine/curve.hpp"
#include "trace.hpp"

namespace shingle {

/// All cells are formatted text. Each row has as many cells as `head`.
struct ReportTable {
  std::string title{};
  std::vector<std::string> head{};
  std::vector<std::vector<std::string>> rows{};
  std::size_t words =
      3;  ///< number of columns from the left that are left-aligned; the others are right-aligned
  std::vector<std::string> notes{};  ///< paragraphs below the table
};

/// Timelines on one time scale, for example of a sequential plan and an overlapped plan.
struct ReportTimelines {
  std::string title{};
  std::vector<Timeline> timelines{};
};

/// One result in a heat map over sizes. M·N is the amount of communication, K the amount of computation for
/// it.
struct SpeedupPoint {
  double mn = 1;
  double k = 1;
  double speedup = 1;
};

struct ReportHeatMap {
  std::string title{};
  std::vector<SpeedupPoint> points{};
};

/// A predicted time and the measured time of the same run.
struct TimePair {
  std::string label{};
  double predicted_us = 1;
  double measured_us = 1;

  /// True if both times are above 0 and finite. Figures leave out other pairs.
  bool valid() const {
    return predicted_us > 0 && measured_us > 0 && std::isfinite(predicted_us + measured_us);
  }
  /// Relative to the measured time; above 0 if the prediction is too long.
  double error() const { return (predicted_us - measured_us) / measured_us; }
};

/// Everything except the title is optional; a section without data is left out.
struct Report {
  std::string title{};
  std::vector<std::string> facts{};  ///< one line each, for example the machine and the command
  std::vector<ReportTable> tables{};
  std::vector<TimePair> predictions{};
  std::vector<ReportHeatMap> heat_maps{};
  std::vector<ReportTimelines> timelines{};
  std::vector<Curve> curves{};  ///< curves of the machine
};

/// A self-contained page: no external references, no script, readable in light and dark, and well-formed XML.
/// Equal reports give equal text. Text is UTF-8 and is escaped.
std::string to_html(const Report& report);

/// The figures of the page as separate pictures. A figure without data is an empty picture.
///
/// Heat map of speed-ups over K and M·N in steps of powers of two, or of four if there are many. A cell shows
/// the median of its points.
std::string heat_map_svg(std::span<const SpeedupPoint> points);
/// Bus bandwidth (wire_factor() · bytes / time) over size, both logarithmic. There is one panel for each
/// collective, and one line for each number of ranks and workers.
std::string bandwidth_svg(std::span<const Curve> curves);
/// One point for each pair. The diagonal is a perfect prediction; the band around it is ten percent.
std::string prediction_svg(std::span<const TimePair> pairs);
/// Share of the pairs with an absolute relative error of at most x, over x (FlashOverlap Fig. 15).
std::string error_cdf_svg(std::span<const TimePair> pairs);

/// Smallest of `values` that at least `share` of them, in (0, 1], do not exceed. `values` must not be empty.
double quantile(std::vector<double> values, double share);

}  // namespace shingle
