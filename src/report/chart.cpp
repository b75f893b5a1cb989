// Timelines as lines of text.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "shingle/base/units.hpp"
#include "shingle/plan/print.hpp"
#include "trace.hpp"

namespace shingle {
namespace {

const Step& step_of(const Timeline& timeline, const Span& span) {
  return timeline.plan.ranks[static_cast<std::size_t>(span.rank)]
      .lanes[static_cast<std::size_t>(span.lane)]
      .steps[static_cast<std::size_t>(span.step)];
}

/// The mark of a span: its group, so that computation and transfer of a group can be matched by eye.
char mark(const Timeline& timeline, const Span& span) {
  const Step& step = step_of(timeline, span);
  if (std::holds_alternative<Await>(step)) return '.';
  if (passes(step)) return '=';
  const int group = group_of_span(timeline.plan, span);
  constexpr std::string_view marks = "0123456789abcdefghijklmnopqrstuvwxyz";
  return group < 0 ? '#' : marks[static_cast<std::size_t>(group) % marks.size()];
}

/// Time in which any of the spans runs. Tiles of one group may begin before the last group's end.
struct Busy {
  double us = 0, until_us = 0;

  /// Add spans in order of their begins.
  void add(const Span& span) {
    us += std::max(span.end_us - std::max(span.begin_us, until_us), 0.0);
    until_us = std::max(until_us, span.end_us);
  }
};

}  // namespace

std::string to_chart(const Timeline& timeline, int rank, std::size_t page, int width) {
  const double begin = begin_us(timeline);
  double end = begin;
  for (const Span& span : timeline.spans) end = std::max(end, span.end_us);
  if (!(end > begin)) return {};
  const double cell_us = (end - begin) / width;
  std::string text = fmt::format("{}, {}\n", timeline.title, format_us(end - begin));
  const auto& lanes = timeline.plan.ranks[static_cast<std::size_t>(rank)].lanes;
  std::vector<Span> spans = timeline.spans;
  std::ranges::stable_sort(spans, {}, &Span::begin_us);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    std::string cells(static_cast<std::size_t>(width), ' ');
    std::map<std::string_view, Busy> busy;
    for (const Span& span : spans) {
      if (span.rank != rank || span.lane != static_cast<std::int32_t>(lane)) continue;
      const Step& step = step_of(timeline, span);
      if (std::holds_alternative<Notify>(step)) continue;
      busy[std::holds_alternative<Await>(step) ? "waiting" : name(step)].add(span);
      const auto first = static_cast<std::size_t>((span.begin_us - begin) / cell_us);
      const auto last = static_cast<std::size_t>(std::ceil((span.end_us - begin) / cell_us));
      for (std::size_t i = first; i < std::min(std::max(last, first + 1), cells.size()); ++i)
        if (cells[i] == ' ' || cells[i] == '.') cells[i] = mark(timeline, span);
    }
    std::string shares;
    for (const auto& [what, spent] : busy)
      shares += fmt::format(" {} {:.0f}%", what, spent.us / (end - begin) * 100);
    const std::string bar = fmt::format("  {:<12}|{}|", lanes[lane].name, cells);
    const bool fits = bar.size() + shares.size() <= page;
    text += fits ? bar + shares + "\n" : fmt::format("{}\n{:14}{}\n", bar, "", shares);
  }
  return text;
}

std::string chart_legend() {
  return "A line is a lane of rank 0, from the begin of a run to its end.\n"
         "  0-9 a-z  a group of tiles: computed in one lane, sent in another\n"
         "  #        computed or sent without groups\n"
         "  =        a pass over finished tiles: sum, norm, reorder\n"
         "  .        waiting for a counter\n"
         "  gemm 60% share of the run; steps of one lane may overlap each other\n";
}

}  // namespace shingle
