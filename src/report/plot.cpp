#include "plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shingle::plot {
namespace {

/// Ticks at powers of the base, or at every second, third, … power if there would be too many. If there are
/// few, also at 3, or at 2 and 5, between decades.
std::vector<double> log_ticks(const Scale& scale) {
  const double first = std::log(scale.from) / std::log(scale.log);
  const double range = std::log(scale.to) / std::log(scale.log) - first;
  const double stride = std::max(1.0, std::ceil(range / 8));
  std::vector<double> multiples{1};
  if (scale.log == 10 && range < 4)
    multiples = range < 2 ? std::vector<double>{1, 2, 5} : std::vector<double>{1, 3};
  std::vector<double> values;
  for (double power = std::floor(first / stride) * stride; power <= first + range; power += stride)
    for (const double times : multiples) {
      const double value = times * std::pow(scale.log, power);
      if (value >= scale.from && value <= scale.to) values.push_back(value);
    }
  return values;
}

std::vector<double> straight_ticks(const Scale& scale) {
  const double step = round_step(scale.to - scale.from, 6);
  std::vector<double> values;
  for (double i = std::ceil(scale.from / step); i * step <= scale.to + 1e-9 * step; ++i)
    values.push_back(i * step);
  return values;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
      out += "\uFFFD";
    else
      out += c;
  }
  return out;
}

std::string text(double x, double y, std::string_view anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(words));
}

std::string size_name(double size) {
  constexpr std::string_view units = "KMGTP";
  std::size_t unit = 0;
  for (; size >= 1024 && unit < units.size(); ++unit) size /= 1024;
  return fmt::format("{:.4g}{}", size, unit == 0 ? "" : units.substr(unit - 1, 1));
}

std::string document(double width, double height, std::string_view body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\" fill=\"#808080\">\n{}</svg>\n",
      width, height, body);
}

double Scale::operator()(double value) const {
  const double part = log > 0 ? std::log(value / from) / std::log(to / from) : (value - from) / (to - from);
  return begin + part * (end - begin);
}

Scale scale_around(std::span<const double> values, double begin, double end, double log) {
  const auto [least, most] = std::ranges::minmax(values);
  if (log > 0) {
    const double room = std::max(std::pow(most / least, 0.05), 1.05);
    return {least / room, most * room, begin, end, log};
  }
  const double room = std::max((most - least) * 0.05, 1e-9);
  return {least - room, most + room, begin, end, log};
}

std::vector<double> ticks(const Scale& scale) {
  if (scale.log > 0) {
    std::vector<double> values = log_ticks(scale);
    if (values.size() >= 3) return values;
  }
  return straight_ticks(scale);
}

double round_step(double range, int count) {
  const double rough = std::max(range, 1e-9) / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0})
    if (rough <= step * power) return step * power;
  return 10 * power;
}

std::string grid(const Scale& x, const Scale& y, const Labels& along_x, const Labels& along_y) {
  std::string out;
  const auto line = [&](double x1, double y1, double x2, double y2) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-opacity=\"0.35\"/>\n",
        x1, y1, x2, y2, neutral);
  };
  for (const double value : ticks(x)) {
    line(x(value), y.begin, x(value), y.end);
    out += text(x(value), y.begin + 16, "middle", along_x.tick(value));
  }
  for (const double value : ticks(y)) {
    line(x.begin, y(value), x.end, y(value));
    out += text(x.begin - 6, y(value) + 4, "end", along_y.tick(value));
  }
  out += text((x.begin + x.end) / 2, y.begin + 36, "middle", along_x.title);
  out += fmt::format(
      "<text transform=\"translate({:.1f} {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      x.begin - 62, (y.begin + y.end) / 2, escaped(along_y.title));
  return out;
}

}  // namespace shingle::plot
