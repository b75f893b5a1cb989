// Heat maps of speed-ups over sizes (FlashOverlap Fig. 13).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report.hpp"

#include "plot.hpp"

namespace shingle {
namespace {

constexpr double map_left = 76, map_top = 30, cell_width = 58, cell_height = 30;

/// Bins of one axis: bin i holds sizes near 2^(first + i · stride).
struct Bins {
  int first = 0, stride = 1, count = 0;

  int of(double value) const { return static_cast<int>(std::lround((std::log2(value) - first) / stride)); }
  double size(int bin) const { return std::exp2(first + bin * stride); }
};

Bins bins_of(const std::vector<SpeedupPoint>& points, double SpeedupPoint::*size) {
  constexpr int most = 14;
  const auto power = [&](const SpeedupPoint& p) { return static_cast<int>(std::lround(std::log2(p.*size))); };
  int first = power(points[0]), last = first;
  for (const SpeedupPoint& point : points) {
    first = std::min(first, power(point));
    last = std::max(last, power(point));
  }
  const int stride = last - first < most ? 1 : 2;
  return {first, stride, (last - first + stride - 1) / stride + 1};
}

struct Rgb {
  double r, g, b;
};

/// From red (slower) over nearly white (equal) to blue (faster), distinguishable with any kind of colour
/// vision.
Rgb colour_of(double speedup, double largest_log) {
  constexpr Rgb slow{178, 24, 43}, even{243, 240, 235}, fast{33, 102, 172};
  const double part = std::clamp(std::log(speedup) / largest_log, -1.0, 1.0);
  const Rgb& end = part < 0 ? slow : fast;
  const double a = std::abs(part);
  return {even.r + a * (end.r - even.r), even.g + a * (end.g - even.g), even.b + a * (end.b - even.b)};
}

std::string cell(double x, double y, double width, double height, const Rgb& colour, std::string_view hint) {
  return fmt::format(
      "<rect class=\"cell\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "fill=\"#{:02x}{:02x}{:02x}\"><title>{}</title></rect>\n",
      x, y, width, height, std::lround(colour.r), std::lround(colour.g), std::lround(colour.b),
      plot::escaped(hint));
}

std::string number(double x, double y, const Rgb& colour, double value) {
  const double light = 0.3 * colour.r + 0.59 * colour.g + 0.11 * colour.b;
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{:.2f}</text>\n", x,
                     y, light < 140 ? "#ffffff" : "#1a1a1a", value);
}

/// Colour scale beside the map, from the slowest to the fastest speed-up.
std::string scale(double x, double y, double largest_log) {
  constexpr int steps = 9;
  constexpr double height = 14;
  std::string out = plot::text(x, y - 8, "start", "speed-up");
  for (int i = 0; i < steps; ++i) {
    const double speedup = std::exp(largest_log * (1 - 2.0 * i / (steps - 1)));
    out +=
        cell(x, y + i * height, 18, height, colour_of(speedup, largest_log), fmt::format("{:.2f}x", speedup));
    if (i % 4 == 0) out += plot::text(x + 24, y + i * height + 11, "start", fmt::format("{:.2f}x", speedup));
  }
  return out;
}

using Cells = std::map<std::pair<int, int>, std::vector<double>>;  // by bins of K and of M·N

std::string draw_cells(const Cells& cells, const Bins& across, const Bins& up, double largest_log) {
  std::string out;
  for (const auto& [at, speedups] : cells) {
    const double median = quantile(speedups, 0.5);
    const double x = map_left + at.second * cell_width, y = map_top + (up.count - 1 - at.first) * cell_height;
    const Rgb colour = colour_of(median, largest_log);
    out += cell(x + 1, y + 1, cell_width - 2, cell_height - 2, colour,
                fmt::format("K {}, M·N {}: {:.2f}x{}", plot::size_name(up.size(at.first)),
                            plot::size_name(across.size(at.second)), median,
                            speedups.size() > 1 ? fmt::format(", median of {}", speedups.size()) : ""));
    out += number(x + cell_width / 2, y + cell_height / 2 + 4, colour, median);
  }
  return out;
}

std::string draw_sides(const Bins& across, const Bins& up) {
  const double bottom = map_top + up.count * cell_height, right = map_left + across.count * cell_width;
  std::string out;
  for (int i = 0; i < up.count; ++i)
    out += plot::text(map_left - 8, bottom - i * cell_height - cell_height / 2 + 4, "end",
                      plot::size_name(up.size(i)));
  for (int i = 0; i < across.count; ++i)
    out +=
        plot::text(map_left + (i + 0.5) * cell_width, bottom + 16, "middle", plot::size_name(across.size(i)));
  out += plot::text((map_left + right) / 2, bottom + 36, "middle", "M·N");
  return out + plot::text(map_left - 50, (map_top + bottom) / 2 + 4, "end", "K");
}

}  // namespace

std::string heat_map_svg(std::span<const SpeedupPoint> points) {
  std::vector<SpeedupPoint> known;
  std::ranges::copy_if(points, std::back_inserter(known), [](const SpeedupPoint& p) {
    return p.mn > 0 && p.k > 0 && std::isfinite(p.speedup) && p.speedup > 0;
  });
  if (known.empty()) return plot::document(1, 1, "");
  const Bins across = bins_of(known, &SpeedupPoint::mn), up = bins_of(known, &SpeedupPoint::k);
  Cells cells;
  // Speed-ups below a tenth stay pale. Shades end at a factor of two: hiding all of the shorter part gives at
  // most that.
  double largest_log = std::log(1.1);
  for (const SpeedupPoint& point : known) {
    cells[{up.of(point.k), across.of(point.mn)}].push_back(point.speedup);
    largest_log = std::clamp(std::abs(std::log(point.speedup)), largest_log, std::log(2.0));
  }
  const double right = map_left + across.count * cell_width, bottom = map_top + up.count * cell_height;
  return plot::document(right + 110, std::max(bottom + 46, map_top + 150),
                        draw_cells(cells, across, up, largest_log) + draw_sides(across, up) +
                            scale(right + 24, map_top + 4, largest_log));
}

}  // namespace shingle
