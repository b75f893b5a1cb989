// Timelines as a picture.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "shingle/api/trace.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

// Middle tones that stand on white and on black alike; groups beyond the tenth take the colours again.
constexpr std::array<const char*, 10> palette{"#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2",
                                              "#e15759", "#b6992d", "#5f9ed1", "#d37295", "#9d7660"};
constexpr const char* neutral = "#8c8c8c";

constexpr double width = 960, gutter = 150, row_height = 16, row_gap = 3, rank_gap = 5, head = 26;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

std::string text(double x, double y, std::string_view anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

struct Extent {
  double begin_us = 0;
  double end_us = 0;
};

Extent extent(const Timeline& timeline) {
  if (timeline.spans.empty()) return {};
  return {std::ranges::min_element(timeline.spans, {}, &Span::begin_us)->begin_us,
          std::ranges::max_element(timeline.spans, {}, &Span::end_us)->end_us};
}

bool waits(const Step& step) {
  return std::holds_alternative<Await>(step) || std::holds_alternative<Notify>(step);
}

/// The bar of one span: passes over finished tiles are paler than products and transfers. Wide ones carry the
/// number of their group.
std::string bar(const Plan& plan, const Span& span, double x, double y, double scale) {
  const Step& step = plan.ranks[span.rank].lanes[span.lane].steps[span.step];
  if (waits(step)) return {};
  const int group = group_of_span(plan, span);
  const char* colour = group < 0 ? neutral : palette[static_cast<std::size_t>(group) % palette.size()];
  const double took_us = span.end_us - span.begin_us, wide = std::max(took_us * scale, 0.3);
  std::string out = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" "
      "fill-opacity=\"{}\"><title>{}, {}</title></rect>\n",
      x, y, wide, row_height, colour, std::holds_alternative<Elementwise>(step) ? 0.55 : 1, name(step),
      format_us(took_us));
  if (group >= 0 && wide > 16)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#ffffff\">{}</text>\n",
                       x + wide / 2, y + row_height - 4, group);
  return out;
}

/// One timeline with its top at `y`; returns the bottom.
double draw(const Timeline& timeline, double y, double scale, std::string& out) {
  const Extent whole = extent(timeline);
  out += text(0, y + 14, "start",
              fmt::format("{}: {}", timeline.title, format_us(whole.end_us - whole.begin_us)));
  y += head;
  for (std::size_t r = 0; r < timeline.plan.ranks.size(); ++r, y += rank_gap) {
    const auto& lanes = timeline.plan.ranks[r].lanes;
    for (std::size_t l = 0; l < lanes.size(); ++l, y += row_height + row_gap) {
      out += text(gutter - 8, y + row_height - 4, "end", fmt::format("rank {} {}", r, lanes[l].name));
      out += fmt::format(
          "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" fill-opacity=\"0.12\"/>\n",
          gutter, y, width - gutter, row_height, neutral);
      for (const Span& span : timeline.spans)
        if (span.rank == static_cast<int>(r) && span.lane == static_cast<int>(l))
          out += bar(timeline.plan, span, gutter + (span.begin_us - whole.begin_us) * scale, y, scale);
    }
  }
  return y;
}

/// About eight ticks at 1, 2 or 5 times a power of ten.
double tick_us(double longest_us) {
  const double rough = std::max(longest_us, 1e-3) / 8, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0})
    if (rough <= step * power) return step * power;
  return 10 * power;
}

}  // namespace

std::string to_svg(std::span<const Timeline> timelines) {
  double longest_us = 0;
  for (const Timeline& timeline : timelines) {
    const Extent whole = extent(timeline);
    longest_us = std::max(longest_us, whole.end_us - whole.begin_us);
  }
  const double scale = longest_us > 0 ? (width - gutter) / longest_us : 0;
  std::string body;
  double y = 0;
  for (const Timeline& timeline : timelines) y = draw(timeline, y, scale, body) + 8;
  const double tick = tick_us(longest_us);
  std::string axis;
  for (double at = 0; at <= longest_us; at += tick) {
    const double x = gutter + at * scale;
    axis += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
        "stroke-opacity=\"0.35\"/>\n",
        x, head - 4, y, neutral);
    axis += text(x, y + 14, "middle", format_us(at));
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-4 0 {} {:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\" fill=\"#808080\">\n{}{}</svg>\n",
      width + 40, y + 20, axis, body);
}

}  // namespace shingle
