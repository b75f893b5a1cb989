#include "shingle/machine/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "shingle/base/error.hpp"

namespace shingle {

std::string_view name(Origin origin) {
  static constexpr std::string_view names[] = {"measured", "datasheet", "paper", "fitted", "assumed"};
  return names[static_cast<std::size_t>(origin)];
}

int Topology::period(int world) const {
  int ranks = 1;
  if (pair.paced() && pair_ranks < world) ranks = std::lcm(ranks, pair_ranks);
  if (ranks_per_node > 0 && ranks_per_node < world) ranks = std::lcm(ranks, ranks_per_node);
  return world % ranks == 0 ? ranks : world;
}

double attention_rate(const Machine& machine, const AttentionSize& size) {
  const auto likeness = [&](const AttentionRate& one) {
    return 2 * (one.of.backward == size.backward ? 1 : 0) + (one.of.causal == size.causal ? 1 : 0);
  };
  int likest = 0;
  for (const AttentionRate& one : machine.attention) likest = std::max(likest, likeness(one));
  const auto apart = [](std::int64_t a, std::int64_t b) {
    const double powers = std::log2(static_cast<double>(a) / static_cast<double>(larger(b, 1)));
    return powers * powers;
  };
  double sum = 0, weights = 0;
  for (const AttentionRate& one : machine.attention) {
    if (likeness(one) < likest) continue;
    const double distance = apart(one.of.queries, size.queries) + apart(one.of.keys, size.keys) +
                            apart(one.of.heads, size.heads) + apart(one.of.head_dim, size.head_dim);
    if (distance == 0) return one.rate;
    const double weight = 1 / (distance * distance);
    sum += weight * one.rate, weights += weight;
  }
  return weights > 0 ? sum / weights : 1;
}

double wave_us(const Machine& machine, std::int64_t tile_rows, std::int64_t tile_cols, double k) {
  const auto area = static_cast<double>(tile_rows) * static_cast<double>(tile_cols);
  const TileRate *below = nullptr, *above = nullptr;  // nearest smaller and larger tile, by area
  const auto area_of = [](const TileRate& rate) { return static_cast<double>(rate.rows) * rate.cols; };
  double whole = std::numeric_limits<double>::infinity();  // time of the fastest tile that holds this one
  for (const TileRate& rate : machine.tiles) {
    if (rate.rows == tile_rows && rate.cols == tile_cols) return rate.us(k);
    if (rate.rows >= tile_rows && rate.cols >= tile_cols) whole = std::min(whole, rate.us(k));
    if (area_of(rate) <= area && (!below || area_of(rate) > area_of(*below))) below = &rate;
    if (area_of(rate) >= area && (!above || area_of(rate) < area_of(*above))) above = &rate;
  }
  if (!below && !above) return -1;
  if (machine.whole_tiles && std::isfinite(whole)) return whole;
  if (!below || !above) return (below ? below : above)->us(k) * area / area_of(below ? *below : *above);
  if (area_of(*below) == area_of(*above)) return below->us(k);
  const double part = std::log(area / area_of(*below)) / std::log(area_of(*above) / area_of(*below));
  return below->us(k) * std::pow(above->us(k) / below->us(k), part);
}

EnginePhases parse_engine(std::string_view text) {
  EnginePhases phases;
  std::set<std::string_view> seen;
  const std::pair<std::string_view, double*> times[] = {
      {"control", &phases.control_us}, {"schedule", &phases.schedule_us},   {"copy", &phases.copy_us},
      {"sync", &phases.sync_us},       {"fetch", &phases.fetch_us},         {"queued", &phases.queued_us},
      {"poll", &phases.poll_us},       {"broadcast", &phases.broadcast_us}, {"swap", &phases.swap_us}};
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto equals = part.find('=');
    const std::string_view phase = part.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : part.substr(equals + 1);
    bool known = false;
    if (!seen.insert(phase).second)
      throw InvalidArgument(fmt::format("'{}': {} is given twice", part, phase));
    for (const auto& [name, at] : times)
      if ((known = name == phase)) {
        *at = parse_time_us(value);
        break;
      }
    if (!known && phase == "rate") {
      const Link link = parse_link(value);
      if (link.latency_us > 0)
        throw InvalidArgument(fmt::format("'{}': an engine's rate has no latency; write rate=60GB/s", part));
      phases.gbps = link.gbps;
      known = true;
    }
    if (!known)
      throw InvalidArgument(fmt::format(
          "'{}' is not a phase of a copy engine; write control=1us,schedule=2us,copy=3us,sync=2us,"
          "rate=60GB/s,fetch=1us,queued=1us,poll=1us,broadcast=1us,swap=1us",
          part));
  }
  return phases;
}

}  // namespace shingle
