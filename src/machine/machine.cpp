#include "shingle/machine/machine.hpp"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <utility>

#include "shingle/base/error.hpp"

namespace shingle {

std::string_view name(Origin origin) {
  static constexpr std::string_view names[] = {"measured", "datasheet", "paper", "fitted", "assumed"};
  return names[static_cast<std::size_t>(origin)];
}

double wave_us(const Machine& machine, std::int64_t tile_rows, std::int64_t tile_cols, double k) {
  const auto area = static_cast<double>(tile_rows) * static_cast<double>(tile_cols);
  const TileRate* nearest = nullptr;
  double ratio = 0;
  for (const TileRate& rate : machine.tiles) {
    if (rate.rows == tile_rows && rate.cols == tile_cols) return rate.us(k);
    const double other = area / (static_cast<double>(rate.rows) * rate.cols);
    if (nearest && std::abs(std::log(other)) >= std::abs(std::log(ratio))) continue;
    nearest = &rate;
    ratio = other;
  }
  return nearest ? nearest->us(k) * ratio : -1;
}

EnginePhases parse_engine(std::string_view text) {
  EnginePhases phases;
  std::set<std::string_view> seen;
  const std::pair<std::string_view, double*> times[] = {{"control", &phases.control_us},
                                                        {"schedule", &phases.schedule_us},
                                                        {"copy", &phases.copy_us},
                                                        {"sync", &phases.sync_us}};
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto equals = part.find('=');
    const std::string_view phase = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    bool known = false;
    if (!seen.insert(phase).second) throw InvalidArgument(fmt::format("'{}': {} is said twice", part, phase));
    for (const auto& [name, at] : times)
      if ((known = name == phase)) {
        *at = parse_time_us(value);
        break;
      }
    if (!known && phase == "rate") {
      const Link link = parse_link(value);
      if (link.latency_us > 0)
        throw InvalidArgument(fmt::format("'{}': an engine's rate is one such as 60GB/s", part));
      phases.gbps = link.gbps;
      known = true;
    }
    if (!known)
      throw InvalidArgument(
          fmt::format("'{}' is no phase of a copy engine; write control=1us,schedule=2us,copy=3us,sync=2us,"
                      "rate=60GB/s",
                      part));
  }
  return phases;
}

}  // namespace shingle
