#include "param_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shingle/base/units.hpp"

namespace shingle::planner {
namespace {

std::int64_t whole(const std::string& text, std::int64_t least, std::int64_t most) {
  const std::int64_t value = parse_size(text);
  if (value < least || value > most)
    throw InvalidArgument(fmt::format("{} is outside [{}, {}]", text, least, most));
  return value;
}

/// Parses, for example, "256x512".
void parse_pair(std::int32_t& first, std::int32_t& second, const std::string& text) {
  const std::vector<std::string> parts = split(text, 'x');
  if (parts.size() != 2) throw InvalidArgument(fmt::format("'{}' is not two sizes such as 256x512", text));
  parse(first, parts[0]);
  parse(second, parts[1]);
}

/// A row of two fields, written as "256x512".
template <class First, class Second>
ParamRow<TileParams> pair_row(ParamInfo info, First first, Second second) {
  return {info,
          [=](const TileParams& at) -> std::optional<std::string> {
            const TileParams none;
            if (first(at) == first(none) && second(at) == second(none)) return std::nullopt;
            return fmt::format("{}x{}", first(at), second(at));
          },
          [=](TileParams& at, const std::string& text) { parse_pair(first(at), second(at), text); },
          {}};
}

/// A row of a field of the order.
template <auto Field>
ParamRow<TileParams> order_row(ParamInfo info, std::string (*write)(const TileOrder&),
                               void (*read)(TileOrder&, const std::string&)) {
  return {info,
          [=](const TileParams& at) -> std::optional<std::string> {
            if (at.order.*Field == TileOrder{}.*Field) return std::nullopt;
            return write(at.order);
          },
          [=](TileParams& at, const std::string& text) { read(at.order, text); },
          {}};
}

void parse_raster(TileOrder& order, const std::string& text) {
  if (text != "n" && text != "m") throw InvalidArgument(fmt::format("'{}' is none of n, m", text));
  order.raster = text == "n" ? Raster::along_n : Raster::along_m;
}

// The settings of one collective, as "channels:4/protocol:ll".
struct Setting {
  std::string_view name;
  std::string (*text)(const CollectiveConfig&);
  void (*parse)(CollectiveConfig&, const std::string&);
};
constexpr Setting settings[] = {
    {"channels", [](const CollectiveConfig& at) { return std::to_string(at.channels); },
     [](CollectiveConfig& at, const std::string& text) { parse(at.channels, text); }},
    {"chunk_bytes", [](const CollectiveConfig& at) { return std::to_string(at.chunk_bytes); },
     [](CollectiveConfig& at, const std::string& text) { parse(at.chunk_bytes, text); }},
    {"threads", [](const CollectiveConfig& at) { return std::to_string(at.threads); },
     [](CollectiveConfig& at, const std::string& text) { parse(at.threads, text); }},
    {"algorithm", [](const CollectiveConfig& at) { return std::string(name(at.algorithm)); },
     [](CollectiveConfig& at, const std::string& text) { at.algorithm = parse_algorithm(text); }},
    {"protocol", [](const CollectiveConfig& at) { return std::string(name(at.protocol)); },
     [](CollectiveConfig& at, const std::string& text) { at.protocol = parse_protocol(text); }},
    {"transport", [](const CollectiveConfig& at) { return std::string(name(at.transport)); },
     [](CollectiveConfig& at, const std::string& text) { at.transport = parse_transport(text); }},
    {"spared", [](const CollectiveConfig& at) { return std::to_string(at.spared); },
     [](CollectiveConfig& at, const std::string& text) { parse(at.spared, text); }},
    {"delay", [](const CollectiveConfig& at) { return std::to_string(at.delay); },
     [](CollectiveConfig& at, const std::string& text) { parse(at.delay, text); }},
};

std::string config_text(const CollectiveConfig& config) {
  const CollectiveConfig none;
  std::string all;
  for (const Setting& setting : settings)
    if (setting.text(config) != setting.text(none))
      all += fmt::format("{}{}:{}", all.empty() ? "" : "/", setting.name, setting.text(config));
  return all.empty() ? "default" : all;
}

void parse_config(CollectiveConfig& config, const std::string& text) {
  config = {};
  if (text == "default") return;
  for (const std::string& part : split(text, '/')) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const auto at = std::ranges::find(settings, part.substr(0, colon), &Setting::name);
    if (at == std::end(settings) || colon == part.size())
      throw InvalidArgument(fmt::format("'{}' is no setting such as channels:4 of a collective", part));
    at->parse(config, part.substr(colon + 1));
  }
}

}  // namespace

std::string text(const std::vector<std::int64_t>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}
std::string text(const std::vector<CollectiveConfig>& configs) {
  std::string all;
  for (const CollectiveConfig& config : configs) all += (all.empty() ? "" : ",") + config_text(config);
  return all;
}

void parse(bool& value, const std::string& text) {
  if (!text.empty()) throw InvalidArgument(fmt::format("'{}' is given, but it takes no value", text));
  value = true;
}
void parse(std::int32_t& value, const std::string& text) {
  value = static_cast<std::int32_t>(whole(text, 1, 1 << 20));
}
void parse(std::int64_t& value, const std::string& text) {
  value = whole(text, 1, max_extent);
}
void parse(std::vector<std::int64_t>& values, const std::string& text) {
  values.clear();
  for (const std::string& part : split(text, ',')) parse(values.emplace_back(), part);
}
void parse(std::vector<CollectiveConfig>& configs, const std::string& text) {
  configs.clear();
  for (const std::string& part : split(text, ',')) parse_config(configs.emplace_back(), part);
}

const ParamTable<TileParams>& tile_table() {
  static const ParamTable<TileParams> table{
      pair_row(
          {.name = "tile", .type = "MxN", .help = "Tile of the GEMM, such as 256x512"},
          [](auto& at) -> auto& { return at.rows; }, [](auto& at) -> auto& { return at.cols; }),
      order_row<&TileOrder::raster>(
          {.name = "raster", .type = "AXIS", .help = "Axis along which tiles run first: n or m"},
          [](const TileOrder& at) { return std::string(at.raster == Raster::along_n ? "n" : "m"); },
          parse_raster),
      order_row<&TileOrder::swizzle>(
          {.name = "swizzle", .type = "N", .help = "Rows of tiles that run together"},
          [](const TileOrder& at) { return std::to_string(at.swizzle); },
          [](TileOrder& at, const std::string& text) { parse(at.swizzle, text); }),
      pair_row(
          {.name = "cluster", .type = "MxN", .help = "Tiles that start together, such as 2x1"},
          [](auto& at) -> auto& { return at.order.cluster_m; },
          [](auto& at) -> auto& { return at.order.cluster_n; }),
      order_row<&TileOrder::rotation>(
          {.name = "rotation", .type = "N", .help = "Band of tiles that runs first"},
          [](const TileOrder& at) { return std::to_string(at.rotation); },
          [](TileOrder& at, const std::string& text) {
            at.rotation = static_cast<std::int32_t>(whole(text, 0, 1 << 20));
          }),
  };
  return table;
}

std::vector<TileRate> tiles_to_try(const Problem& problem, const Machine& machine) {
  const auto smaller_serves = [&](const TileRate& tile) {
    return std::ranges::any_of(machine.tiles, [&](const TileRate& other) {
      return other.cols == tile.cols && other.rows < tile.rows && other.rows >= problem.m;
    });
  };
  std::vector<TileRate> tiles;
  for (const TileRate& tile : machine.tiles)
    if (!smaller_serves(tile) && tile.cols <= 2 * problem.n) tiles.push_back(tile);
  return tiles;
}

std::vector<std::int32_t> known_comm_workers(const Machine& machine) {
  std::vector<std::int32_t> workers;
  for (const Curve& curve : machine.curves)
    if (curve.workers > 0 && curve.workers < machine.workers) workers.push_back(curve.workers);
  std::ranges::sort(workers);
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  return workers;
}

}  // namespace shingle::planner
