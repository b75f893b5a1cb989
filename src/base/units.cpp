#include "shingle/base/units.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "shingle/base/error.hpp"

namespace shingle {
namespace {

struct Quantity {
  double value;
  std::string_view unit;
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

Quantity quantity(std::string_view text, std::string_view what) {
  text = trim(text);
  Quantity q{0, {}};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), q.value);
  if (error != std::errc{} || !std::isfinite(q.value) || q.value < 0)
    throw InvalidArgument(fmt::format("'{}' is not a {}", text, what));
  q.unit = trim(text.substr(static_cast<std::size_t>(end - text.data())));
  return q;
}

double rate_gbps(const Quantity& q, std::string_view text) {
  if (q.unit == "TB/s") return q.value * 1e3;
  if (q.unit == "GB/s") return q.value;
  if (q.unit == "MB/s") return q.value * 1e-3;
  if (q.unit == "KB/s") return q.value * 1e-6;
  if (q.unit == "Gb/s") return q.value / 8;
  if (q.unit == "Mb/s") return q.value / 8e3;
  throw InvalidArgument(fmt::format("'{}' is not a rate such as 8GB/s or 400Gb/s", text));
}

}  // namespace

std::int64_t parse_size(std::string_view text) {
  const std::string_view trimmed = trim(text);
  const auto bad = [&] {
    return InvalidArgument(fmt::format("'{}' is not a size such as 4096, 8K or 128M", text));
  };
  // Integers are parsed as integers, because a double would lose digits.
  std::uint64_t whole = 0;
  const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), whole);
  if (error == std::errc::result_out_of_range)
    throw InvalidArgument(fmt::format("'{}' is too large: at most 4194304T", text));
  if (error != std::errc{}) throw bad();
  std::string_view unit = trim(trimmed.substr(static_cast<std::size_t>(end - trimmed.data())));
  if (unit.size() > 2 && unit.ends_with("iB")) {
    unit.remove_suffix(2);
  } else if (unit.ends_with('B')) {
    unit.remove_suffix(1);
  }
  int shift = 0;
  if (unit == "K" || unit == "k")
    shift = 10;
  else if (unit == "M")
    shift = 20;
  else if (unit == "G")
    shift = 30;
  else if (unit == "T")
    shift = 40;
  else if (!unit.empty())
    throw bad();
  if (whole > (std::uint64_t{1} << (62 - shift)))
    throw InvalidArgument(fmt::format("'{}' is too large: at most 4194304T", text));
  return static_cast<std::int64_t>(whole << shift);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
  }
  return parts;
}

Link parse_link(std::string_view text) {
  Link link;
  if (trim(text) == "none") return link;
  bool more = true, rate = false, latency = false;
  const auto once = [&](bool& seen, std::string_view part) {
    if (std::exchange(seen, true))
      throw InvalidArgument(fmt::format("'{}': a link has one rate and one latency", part));
  };
  while (more) {
    const auto comma = text.find(',');
    const std::string_view part = trim(text.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) text = text.substr(comma + 1);
    const Quantity q = quantity(part, "link such as 8GB/s,10us");
    if (q.unit.empty())
      throw InvalidArgument(fmt::format("'{}' has no unit; write a link as 8GB/s,10us", part));
    if (q.unit.ends_with("/s")) {
      once(rate, part);
      link.gbps = rate_gbps(q, part);
      if (link.gbps <= 0) throw InvalidArgument(fmt::format("'{}': a link's rate must be above zero", part));
    } else {
      once(latency, part);
      link.latency_us = parse_time_us(part);
    }
  }
  return link;
}

double parse_time_us(std::string_view text) {
  constexpr double longest_us = 1e12;  // about 11.6 days
  const Quantity q = quantity(text, "time such as 30s or 10us");
  double unit_us = 0;
  if (q.unit == "us") unit_us = 1;
  if (q.unit == "ms") unit_us = 1e3;
  if (q.unit == "s" || q.unit.empty()) unit_us = 1e6;
  if (q.unit == "m" || q.unit == "min") unit_us = 60e6;
  if (unit_us == 0) throw InvalidArgument(fmt::format("'{}' is not a time such as 30s, 250ms or 10us", text));
  if (!(q.value * unit_us <= longest_us))
    throw InvalidArgument(fmt::format("'{}' is longer than 1000000s", text));
  return q.value * unit_us;
}

std::string format_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int i = 0;
  while (bytes >= 1024 && i < 4) bytes /= 1024, ++i;
  return i == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[i]);
}

std::string format_us(double us) {
  if (us >= 1e6) return fmt::format("{:.2f} s", us * 1e-6);
  if (us >= 1e3) return fmt::format("{:.2f} ms", us * 1e-3);
  return fmt::format("{:.0f} us", us);
}

}  // namespace shingle
