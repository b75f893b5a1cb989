// Figures: bandwidth curves of machines, and predictions against measurements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "report.hpp"
#include "shingle/base/units.hpp"

#include "plot.hpp"

namespace shingle {
namespace {

using plot::Scale, plot::neutral, plot::palette, plot::text;

std::string circle(double x, double y, double radius, std::string_view colour, std::string_view hint) {
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{}</title></circle>\n",
                     x, y, radius, colour, plot::escaped(hint));
}

std::string path(std::string_view points, std::string_view colour, std::string_view more = "") {
  return fmt::format("<path d=\"M{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" {}/>\n", points, colour,
                     more);
}

double bus_gbps(const Curve& curve, const Sample& sample) {
  return wire_factor(curve.traffic, curve.ranks) * sample.bytes / (sample.us * 1e3);
}

/// The keys that distinguish lines of one panel.
using Line = std::pair<std::int32_t, std::int32_t>;  // ranks, workers

Line line_of(const Curve& curve) {
  return {curve.ranks, curve.workers};
}

std::string_view colour_of(const std::set<Line>& lines, const Line& line) {
  const auto place = static_cast<std::size_t>(std::distance(lines.begin(), lines.find(line)));
  return palette[place % palette.size()];
}

std::string draw_curve(const Curve& curve, const Scale& x, const Scale& y, std::string_view colour) {
  std::string points, circles;
  for (const Sample& sample : curve.samples) {
    const double gbps = bus_gbps(curve, sample), at_x = x(sample.bytes), at_y = y(gbps);
    points += fmt::format("{}{:.1f} {:.1f}", points.empty() ? "" : " L", at_x, at_y);
    circles += circle(at_x, at_y, 3, colour,
                      fmt::format("{}, {} ranks: {} at {:.3g} GB/s, {}", name(curve.traffic), curve.ranks,
                                  format_bytes(sample.bytes), gbps, format_us(sample.us)));
  }
  return points.empty() ? "" : path(points, colour) + circles;
}

std::string draw_key(const std::set<Line>& lines, double x, double y) {
  std::string out;
  for (const Line& line : lines) {
    out += path(fmt::format("{:.1f} {:.1f} h18", x, y - 4), colour_of(lines, line));
    out += text(x + 24, y, "start",
                line.second == 0 ? fmt::format("{} ranks", line.first)
                                 : fmt::format("{} ranks, {} workers", line.first, line.second));
    y += 18;
  }
  return out;
}

struct Extents {
  std::vector<double> bytes, gbps;
};

Extents extents(std::span<const Curve> curves) {
  Extents all;
  for (const Curve& curve : curves)
    for (const Sample& sample : curve.samples) {
      all.bytes.push_back(sample.bytes);
      all.gbps.push_back(bus_gbps(curve, sample));
    }
  return all;
}

std::vector<TimePair> valid(std::span<const TimePair> pairs) {
  std::vector<TimePair> kept;
  std::ranges::copy_if(pairs, std::back_inserter(kept), &TimePair::valid);
  return kept;
}

std::string percent(double part) {
  return fmt::format("{:.3g} %", 100 * part);
}

/// Frame of all figures of predictions.
constexpr double width = 480, height = 400, left = 92, right = 464, top = 16, bottom = 344;

}  // namespace

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const double place = std::clamp(std::ceil(share * count) - 1, 0.0, count - 1);
  return values[static_cast<std::size_t>(place)];
}

std::string bandwidth_svg(std::span<const Curve> curves) {
  const Extents all = extents(curves);
  if (all.bytes.empty()) return plot::document(1, 1, "");
  std::set<Line> lines;
  std::vector<Traffic> panels;
  for (const Curve& curve : curves) {
    lines.insert(line_of(curve));
    if (std::ranges::find(panels, curve.traffic) == panels.end()) panels.push_back(curve.traffic);
  }
  constexpr double panel_width = 440, panel_height = 310;
  std::string out;
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const double x0 = static_cast<double>(i % 2) * panel_width;
    const double y0 = static_cast<double>(i / 2) * panel_height;
    const Scale x = plot::scale_around(all.bytes, x0 + 84, x0 + panel_width - 16, 2);
    const Scale y = plot::scale_around(all.gbps, y0 + panel_height - 54, y0 + 30, 10);
    out += text((x.begin + x.end) / 2, y.end - 10, "middle", name(panels[i]));
    out += plot::grid(x, y, {"bytes of the whole matrix", plot::size_name},
                      {"bus bandwidth, GB/s", [](double gbps) { return fmt::format("{:g}", gbps); }});
    for (const Curve& curve : curves)
      if (curve.traffic == panels[i]) out += draw_curve(curve, x, y, colour_of(lines, line_of(curve)));
  }
  const double columns = panels.size() > 1 ? 2 : 1, rows = std::ceil(static_cast<double>(panels.size()) / 2);
  out += draw_key(lines, columns * panel_width + 8, 44);
  return plot::document(columns * panel_width + 150, rows * panel_height, out);
}

std::string prediction_svg(std::span<const TimePair> pairs) {
  const std::vector<TimePair> known = valid(pairs);
  if (known.empty()) return plot::document(1, 1, "");
  std::vector<double> times;
  for (const TimePair& pair : known) {
    times.push_back(pair.predicted_us);
    times.push_back(pair.measured_us);
  }
  const Scale x = plot::scale_around(times, left, right, 10), y = plot::scale_around(times, bottom, top, 10);
  // A band of ten percent on both sides of the diagonal, clipped to the frame.
  constexpr double band = 1.1;
  std::string out = fmt::format(
      "<path d=\"M{0:.1f} {1:.1f} L{0:.1f} {2:.1f} L{3:.1f} {4:.1f} L{5:.1f} {4:.1f} L{5:.1f} {6:.1f} "
      "L{7:.1f} {1:.1f} Z\" fill=\"{8}\" fill-opacity=\"0.2\"/>\n",
      x.begin, y.begin, y(x.from * band), x(x.to / band), y.end, x.end, y(x.to / band), x(x.from * band),
      neutral);
  out += plot::grid(x, y, {"measured", format_us}, {"predicted", format_us});
  out += path(fmt::format("{:.1f} {:.1f} L{:.1f} {:.1f}", x.begin, y.begin, x.end, y.end), neutral);
  for (const TimePair& pair : known)
    out += circle(x(pair.measured_us), y(pair.predicted_us), 4, palette[0],
                  fmt::format("{}: predicted {}, measured {}, {:+.1f} %", pair.label,
                              format_us(pair.predicted_us), format_us(pair.measured_us), 100 * pair.error()));
  return plot::document(width, height, out);
}

std::string error_cdf_svg(std::span<const TimePair> pairs) {
  const std::vector<TimePair> known = valid(pairs);
  if (known.empty()) return plot::document(1, 1, "");
  std::vector<double> errors;
  for (const TimePair& pair : known) errors.push_back(std::abs(pair.error()));
  std::ranges::sort(errors);
  const Scale x{0, std::max(errors.back() * 1.05, 0.01), left, right, 0}, y{0, 1, bottom, top, 0};
  std::string out =
      plot::grid(x, y, {"relative error, either way", percent}, {"part of the predictions", percent});
  std::string points = fmt::format("{:.1f} {:.1f}", x(0), y(0));
  for (std::size_t i = 0; i < errors.size(); ++i)
    points += fmt::format(" H{:.1f} V{:.1f}", x(errors[i]),
                          y(static_cast<double>(i + 1) / static_cast<double>(errors.size())));
  out += path(points + fmt::format(" H{:.1f}", x.end), palette[0]);
  for (const auto& [share, called] : {std::pair{0.5, "median"}, std::pair{0.9, "p90"}}) {
    const double error = quantile(errors, share);
    out += circle(x(error), y(share), 5, palette[1], fmt::format("{} {}", called, percent(error)));
    // The label is on the side of the mark that has room.
    const bool room = x(error) < (left + right) / 2;
    out += text(x(error) + (room ? 10 : -10), y(share) + (room ? 18 : -10), room ? "start" : "end",
                fmt::format("{} {}", called, percent(error)));
  }
  return plot::document(width, height, out);
}

}  // namespace shingle
