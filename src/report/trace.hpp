// Timelines of runs, for Perfetto (chrome://tracing) and for the page.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shingle/backend/backend.hpp"

namespace shingle {

/// The spans of one run, and the plan that they belong to.
struct Timeline {
  std::string title;
  Plan plan;
  std::vector<Span> spans;
  std::optional<double>
      begin_us{};  ///< when the run began, where that is known: before a first command is ready
};

/// When a timeline begins: as it says, else with its first span.
double begin_us(const Timeline& timeline);

/// The group of tiles that a span computes or sends: its own, or that of the counter entry that its step
/// awaits or notifies; -1 where it is of no single group.
int group_of_span(const Plan& plan, const Span& span);

/// Chrome-trace JSON: a process a rank, a thread a lane, a slice a span, in microseconds. Several timelines
/// follow one another.
std::string to_chrome_trace(std::span<const Timeline> timelines);

/// A picture of timelines below each other on one time scale: a row for each lane of each rank, computation
/// and communication of a group of tiles in the same colour. Stands on light and dark ground. `ranks`: so
/// many at most, from rank 0 on.
std::string to_svg(std::span<const Timeline> timelines, int ranks = max_world);

/// The lanes of one rank as lines of text, `width` characters for the whole time: a digit is a group of tiles
/// computed or sent, # either without groups, = a pass over finished tiles, . waiting; then the share of
/// each.
std::string to_chart(const Timeline& timeline, int rank, int width = 64);
/// The same explanation, for those who read charts.
std::string chart_legend();

/// How a plan would run if a wave of tiles took one unit of 100 us to compute and as long to send, and four
/// if it is attention, whose every element looks at all keys: the order of things, not a prediction.
Timeline schematic(const Plan& plan);

/// What an element costs, in microseconds: of a GEMM's output, of a pass over finished ones, and on the wire.
struct UnitCosts {
  double product_us = 1;
  double pass_us = 0;
  double transfer_us = 1;
  double attend_us = -1;  ///< of what attention makes; negative: as product_us
};

/// The same with costs of one's own. Links carry both directions at once, one message at a time in each;
/// collectives move what a bandwidth-optimal algorithm does; awaits and notifies cost nothing.
Timeline schematic(const Plan& plan, const UnitCosts& costs);

}  // namespace shingle
