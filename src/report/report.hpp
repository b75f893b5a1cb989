// Results as one page: what a browser shows of runs, predictions and comparisons, from a single file.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shingle/machine/curve.hpp"
#include "trace.hpp"

namespace shingle {

/// All cells are words as they are to be shown; each row has as many as the head.
struct ReportTable {
  std::string title{};
  std::vector<std::string> head{};
  std::vector<std::vector<std::string>> rows{};
  std::size_t words = 3;  ///< columns from the left that begin at the left; numbers end at the right
  std::vector<std::string> notes{};  ///< below it, a paragraph each
};

/// Timelines that share one time scale, such as a sequential plan and the one that overlaps.
struct ReportTimelines {
  std::string title{};
  std::vector<Timeline> timelines{};
};

/// One result in a heat map over sizes: M·N says how much is sent, K how much is computed for it.
struct SpeedupPoint {
  double mn = 1;
  double k = 1;
  double speedup = 1;
};

struct ReportHeatMap {
  std::string title{};
  std::vector<SpeedupPoint> points{};
};

/// What was predicted to take so long, and how long it took.
struct TimePair {
  std::string label{};
  double predicted_us = 1;
  double measured_us = 1;

  /// Both times are above 0 and finite: figures leave out others.
  bool valid() const {
    return predicted_us > 0 && measured_us > 0 && std::isfinite(predicted_us + measured_us);
  }
  /// Relative to what was measured: above 0 where the prediction is too long.
  double error() const { return (predicted_us - measured_us) / measured_us; }
};

/// Everything is optional but the title: a section without data is left out.
struct Report {
  std::string title{};
  std::vector<std::string> facts{};  ///< a line each: of which machine, made by what
  std::vector<ReportTable> tables{};
  std::vector<TimePair> predictions{};
  std::vector<ReportHeatMap> heat_maps{};
  std::vector<ReportTimelines> timelines{};
  std::vector<Curve> curves{};  ///< of the machine
};

/// A page that stands alone: it refers to nothing outside of itself, reads in light and in dark, needs no
/// script, and is well-formed XML as well. The same text for the same report. Text is UTF-8 and is escaped.
std::string to_html(const Report& report);

/// The figures of the page, each a picture of its own. Those without data are empty pictures.
///
/// Speed-ups over K and M·N in steps of powers of two (of four where there are many); a cell holds the median
/// of its points.
std::string heat_map_svg(std::span<const SpeedupPoint> points);
/// Bus bandwidth (wire_factor() · bytes / time) over size, both logarithmic: a panel a collective, a line for
/// each number of ranks and of workers.
std::string bandwidth_svg(std::span<const Curve> curves);
/// A point a pair; the diagonal is a perfect prediction, the band beside it ten percent.
std::string prediction_svg(std::span<const TimePair> pairs);
/// The part of the pairs whose relative error, either way, is at most so large (FlashOverlap Fig. 15).
std::string error_cdf_svg(std::span<const TimePair> pairs);

/// The smallest of `values` (at least one) that is not exceeded by `share` of them, in (0, 1].
double quantile(std::vector<double> values, double share);

}  // namespace shingle
