// Timelines of runs, for Perfetto (chrome://tracing) and for the HTML page.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle {

/// The spans of one run, with their plan.
struct Timeline {
  std::string title;
  Plan plan;
  std::vector<Span> spans;
  std::optional<double> begin_us{};  ///< begin of the run, before its first command is ready; empty: unknown
};

/// Begin of a timeline: its begin_us, or else the begin of its first span.
double begin_us(const Timeline& timeline);

/// Group of the tiles that a span computes or sends. It is the span's own group, or that of the counter entry
/// that its step awaits or notifies. -1: no single group.
int group_of_span(const Plan& plan, const Span& span);

/// Chrome-trace JSON in microseconds: a process for each rank, a thread for each lane, a slice for each span.
/// Several timelines follow one another.
std::string to_chrome_trace(std::span<const Timeline> timelines);

/// SVG of timelines, stacked on one time scale: a row for each lane of each rank. Computation and
/// communication of a group of tiles have the same colour. Readable on light and dark. Shows at most `ranks`
/// ranks, from rank 0 on.
std::string to_svg(std::span<const Timeline> timelines, int ranks = max_world);

/// True if a step is a pass over finished tiles or parts of results.
inline bool passes(const Step& step) {
  return std::holds_alternative<Elementwise>(step) || std::holds_alternative<Merge>(step);
}

/// The lanes of one rank as lines of text, with `width` characters for the whole time, and the share of each
/// kind of step. Shares that do not fit into `page` columns are on the next line.
///
/// A digit or letter is a group of tiles that is computed or sent; # is either without groups. = is a pass
/// over finished tiles, and . is a wait.
std::string to_chart(const Timeline& timeline, int rank, std::size_t page, int width = 64);
/// The legend of to_chart() for users.
std::string chart_legend();

/// A schematic timeline: a wave of tiles takes 100 us to compute and 100 us to send. Attention takes four
/// times as long, because each element reads all keys. It shows the order of steps, and predicts no times.
Timeline schematic(const Plan& plan);

/// Costs in microseconds of one element: of a GEMM's output, of a pass over finished tiles, and on the wire.
struct UnitCosts {
  double product_us = 1;
  double pass_us = 0;
  double transfer_us = 1;
  double attend_us = -1;  ///< of attention's output; negative: product_us
};

/// As above, with given costs. Links carry both directions at once, one message at a time in each.
/// Collectives move the bytes of a bandwidth-optimal algorithm. Awaits and notifies cost nothing.
Timeline schematic(const Plan& plan, const UnitCosts& costs);

}  // namespace shingle
