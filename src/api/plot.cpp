#include "plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shingle::plot {
namespace {

/// Powers of the base; of every second, third, … where all would be too many. Between decades also 2 and 5
/// where there are few.
std::vector<double> log_ticks(const Scale& axis) {
  const double first = std::log(axis.from) / std::log(axis.log),
               last = std::log(axis.to) / std::log(axis.log);
  const double stride = std::max(1.0, std::ceil((last - first) / 8));
  std::vector<double> values;
  for (double power = std::floor(first / stride) * stride; power <= last; power += stride)
    for (const double times : {1.0, 2.0, 5.0}) {
      if (times > 1 && (axis.log != 10 || last - first > 2.5)) continue;
      const double value = times * std::pow(axis.log, power);
      if (value >= axis.from && value <= axis.to) values.push_back(value);
    }
  return values;
}

std::vector<double> straight_ticks(const Scale& axis) {
  const double step = round_step(axis.to - axis.from);
  std::vector<double> values;
  for (double i = std::ceil(axis.from / step); i * step <= axis.to + 1e-9 * step; ++i)
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

std::vector<double> ticks(const Scale& axis) {
  if (axis.log > 0) {
    std::vector<double> values = log_ticks(axis);
    if (values.size() >= 3) return values;
  }
  return straight_ticks(axis);
}

double round_step(double range) {
  const double rough = std::max(range, 1e-9) / 8, power = std::pow(10, std::floor(std::log10(rough)));
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
