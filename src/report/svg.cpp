// Timelines as SVG pictures.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shingle/base/units.hpp"
#include "trace.hpp"

#include "plot.hpp"

namespace shingle {
namespace {

using plot::neutral, plot::palette, plot::text;

constexpr double page_width = 960, gutter = 150, row_height = 16, row_gap = 3, rank_gap = 5, head = 26;
constexpr double digit_width = 7, margin = 9;  // of a group's number in its bar

struct Extent {
  double begin_us = 0;
  double end_us = 0;
};

Extent extent(const Timeline& timeline) {
  if (timeline.spans.empty()) return {};
  return {begin_us(timeline), std::ranges::max_element(timeline.spans, {}, &Span::end_us)->end_us};
}

bool waits(const Step& step) {
  return std::holds_alternative<Await>(step) || std::holds_alternative<Notify>(step);
}

/// The bar of one span. Passes over finished tiles are paler than GEMMs and transfers. The bar shows the
/// number of its group if that fits into its first `room` pixels.
std::string bar(const Plan& plan, const Span& span, double x, double y, double scale, double room) {
  const Step& step = plan.ranks[span.rank].lanes[span.lane].steps[span.step];
  const int group = group_of_span(plan, span);
  const char* colour = group < 0 ? neutral : palette[static_cast<std::size_t>(group) % palette.size()];
  const double took_us = span.end_us - span.begin_us, wide = std::max(took_us * scale, 0.3);
  std::string out = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" "
      "fill-opacity=\"{}\"><title>{}, {}</title></rect>\n",
      x, y, wide, row_height, colour, passes(step) ? 0.55 : 1, name(step), format_us(took_us));
  if (group < 0) return out;
  const std::string number = std::to_string(group);
  const double shown = std::min(wide, room);
  if (shown > margin + digit_width * static_cast<double>(number.size()))
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#ffffff\">{}</text>\n",
                       x + shown / 2, y + row_height - 4, number);
  return out;
}

/// The bars of one lane. Steps of a lane may overlap, and a bar covers earlier ones from its begin on. Each
/// bar therefore has room for a number until the next one begins.
std::string bars(const Timeline& timeline, int rank, int lane, double begin_us, double y, double scale) {
  std::vector<Span> spans;
  for (const Span& span : timeline.spans)
    if (span.rank == rank && span.lane == lane &&
        !waits(timeline.plan.ranks[span.rank].lanes[span.lane].steps[span.step]))
      spans.push_back(span);
  std::ranges::stable_sort(spans, {}, &Span::begin_us);
  const auto x = [&](const Span& span) { return gutter + (span.begin_us - begin_us) * scale; };
  std::string out;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const double next = i + 1 < spans.size() ? x(spans[i + 1]) : page_width;
    out += bar(timeline.plan, spans[i], x(spans[i]), y, scale, next - x(spans[i]));
  }
  return out;
}

/// Draws one timeline with its top at `y`. Returns its bottom.
double draw(const Timeline& timeline, std::size_t ranks, double y, double scale, std::string& out) {
  const Extent whole = extent(timeline);
  out += text(0, y + 14, "start",
              fmt::format("{}: {}", timeline.title, format_us(whole.end_us - whole.begin_us)));
  y += head;
  for (std::size_t r = 0; r < std::min(ranks, timeline.plan.ranks.size()); ++r, y += rank_gap) {
    const auto& lanes = timeline.plan.ranks[r].lanes;
    for (std::size_t l = 0; l < lanes.size(); ++l, y += row_height + row_gap) {
      out += text(gutter - 8, y + row_height - 4, "end", fmt::format("rank {} {}", r, lanes[l].name));
      out += fmt::format(
          "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" fill-opacity=\"0.12\"/>\n",
          gutter, y, page_width - gutter, row_height, neutral);
      out += bars(timeline, static_cast<int>(r), static_cast<int>(l), whole.begin_us, y, scale);
    }
  }
  return y;
}

}  // namespace

std::string to_svg(std::span<const Timeline> timelines, int ranks) {
  double longest_us = 0;
  for (const Timeline& timeline : timelines) {
    const Extent whole = extent(timeline);
    longest_us = std::max(longest_us, whole.end_us - whole.begin_us);
  }
  const double scale = longest_us > 0 ? (page_width - gutter) / longest_us : 0;
  std::string body;
  double y = 0;
  for (const Timeline& timeline : timelines)
    y = draw(timeline, static_cast<std::size_t>(ranks), y, scale, body) + 8;
  const double tick = plot::round_step(longest_us);
  std::string axis;
  for (double at = 0; at <= longest_us; at += tick) {
    const double x = gutter + at * scale;
    axis += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
        "stroke-opacity=\"0.35\"/>\n",
        x, head - 4, y, neutral);
    axis += text(x, y + 14, "middle", format_us(at));
  }
  return plot::document(page_width + 40, y + 20, axis + body);
}

}  // namespace shingle
