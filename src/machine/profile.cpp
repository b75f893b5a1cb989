#include "shingle/machine/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/file.hpp"
#include "base/json_fields.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

using Json = nlohmann::json;

constexpr double most = 1e12;  // max of any rate or time
constexpr double least_rate =
    1e-9;  // min of any rate that is not zero, so that a division by it stays finite
constexpr std::int64_t most_count = 1 << 20;
constexpr Origin origins[] = {Origin::measured, Origin::datasheet, Origin::paper, Origin::fitted,
                              Origin::assumed};

/// Prefixes errors with the element or object that they concern.
template <class Read>
auto within(const std::string& where, Read read) {
  try {
    return read();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", where, error.what()));
  }
}

void allow_only(const Json& object, const std::set<std::string>& keys) {
  if (!object.is_object()) throw InvalidArgument(fmt::format("must be an object, not {}", show(object)));
  for (const auto& [key, value] : object.items())
    if (!keys.contains(key)) throw InvalidArgument(fmt::format("unknown key {}", show(Json(key))));
}

double positive(const Fields& fields, const char* key) {
  const auto value = fields.number({key}, 0, most);
  if (!value) throw InvalidArgument(fmt::format("missing key '{}'", key));
  if (*value <= 0) throw InvalidArgument(fmt::format("{} must be above zero", key));
  if (*value < least_rate)
    throw InvalidArgument(fmt::format("{} = {} is outside [{}, {}]", key, *value, least_rate, most));
  return *value;
}

/// A rate. Zero means unknown or unlimited.
double rate(const Fields& fields, const char* key) {
  return fields.number({key}, 0, most).value_or(0) == 0 ? 0 : positive(fields, key);
}

std::int32_t count(const Fields& fields, const char* key, std::int64_t least) {
  return static_cast<std::int32_t>(fields.required({key}, least, most_count));
}

std::string required_text(const Fields& fields, const char* key) {
  const auto text = fields.text({key});
  if (!text) throw InvalidArgument(fmt::format("missing key '{}'", key));
  return *text;
}

TileOrder read_order(const Fields& fields) {
  constexpr std::int64_t most_tiles = 4096;
  TileOrder order;
  if (const auto raster = fields.text({"raster"})) {
    if (*raster != "along_n" && *raster != "along_m")
      throw InvalidArgument(fmt::format("raster '{}' is neither along_n nor along_m", *raster));
    order.raster = *raster == "along_m" ? Raster::along_m : Raster::along_n;
  }
  order.swizzle = static_cast<std::int32_t>(fields.integer({"swizzle"}, 1, most_tiles).value_or(1));
  order.cluster_m = static_cast<std::int32_t>(fields.integer({"cluster_m"}, 1, most_tiles).value_or(1));
  return order;
}

template <class Element>
std::vector<Element> read_list(const Fields& fields, const char* key, Element (*read)(const Json&)) {
  std::vector<Element> list;
  if (const Json* json = fields.list({key}))
    for (const Json& element : *json)
      list.push_back(within(fmt::format("{}[{}]", key, list.size()), [&] { return read(element); }));
  return list;
}

TileRate read_tile(const Json& json) {
  allow_only(json, {"rows", "cols", "fixed_us", "us_per_k", "store_gbps", "alone_store_gbps"});
  const Fields fields(json);
  return {count(fields, "rows", 1),
          count(fields, "cols", 1),
          fields.number({"fixed_us"}, 0, most).value_or(0),
          positive(fields, "us_per_k"),
          fields.number({"store_gbps"}, 0, most).value_or(0),
          fields.number({"alone_store_gbps"}, 0, most).value_or(0)};
}

AttentionRate read_attention(const Json& json) {
  allow_only(json, {"queries", "keys", "heads", "head_dim", "causal", "backward", "rate"});
  const Fields fields(json);
  AttentionSize of{count(fields, "queries", 1), count(fields, "keys", 1), count(fields, "heads", 1)};
  if (json.contains("head_dim")) of.head_dim = count(fields, "head_dim", 1);
  of.causal = fields.flag({"causal"}).value_or(false);
  of.backward = fields.flag({"backward"}).value_or(false);
  return {of, positive(fields, "rate")};
}

Sample read_sample(const Json& json) {
  allow_only(json, {"bytes", "us"});
  const Fields fields(json);
  return {positive(fields, "bytes"), positive(fields, "us")};
}

Curve read_curve(const Json& json) {
  allow_only(json, {"traffic", "ranks", "workers", "samples"});
  const Fields fields(json);
  Curve curve;
  curve.traffic = parse_traffic(required_text(fields, "traffic"));
  curve.ranks = count(fields, "ranks", 2);
  curve.workers = static_cast<std::int32_t>(fields.integer({"workers"}, 0, most_count).value_or(0));
  curve.samples = read_list(fields, "samples", read_sample);
  if (curve.samples.empty()) throw InvalidArgument("a curve needs samples");
  for (std::size_t i = 1; i < curve.samples.size(); ++i)
    if (curve.samples[i].bytes <= curve.samples[i - 1].bytes)
      throw InvalidArgument(fmt::format("samples[{}]: bytes must ascend", i));
  return curve;
}

ContentionSample read_contention_sample(const Json& json) {
  allow_only(json,
             {"traffic", "ranks", "workers", "chunk_bytes", "bytes", "us", "beside_us", "product_us",
              "product_beside_us", "calls", "computation", "engines", "moved_bytes", "moved_again_bytes"});
  const Fields fields(json);
  const auto integer = [&](const char* key, std::int64_t largest) {
    return fields.integer({key}, 0, largest).value_or(0);
  };
  const auto calls = static_cast<std::int32_t>(integer("calls", most_count));
  const bool engines = fields.flag({"engines"}).value_or(false);
  return {.traffic = parse_traffic(required_text(fields, "traffic")),
          .ranks = count(fields, "ranks", 2),
          .workers = count(fields, "workers", calls > 0 || engines ? 0 : 1),
          .chunk_bytes = integer("chunk_bytes", std::int64_t{1} << 40),
          .bytes = positive(fields, "bytes"),
          .us = positive(fields, "us"),
          .beside_us = positive(fields, "beside_us"),
          .product_us = positive(fields, "product_us"),
          .product_beside_us = positive(fields, "product_beside_us"),
          .calls = calls,
          .computation = parse_computation_kind(fields.text({"computation"}).value_or("product")),
          .engines = engines,
          .moved = {rate(fields, "moved_bytes"), rate(fields, "moved_again_bytes")}};
}

Source read_source(const Json& json) {
  allow_only(json, {"of", "origin", "note"});
  const Fields fields(json);
  const std::string origin = required_text(fields, "origin");
  for (const Origin known : origins)
    if (name(known) == origin)
      return {required_text(fields, "of"), known, fields.text({"note"}).value_or("")};
  throw InvalidArgument(fmt::format(
      "origin {} is unknown (one of measured, datasheet, paper, fitted, assumed)", show(Json(origin))));
}

Link read_link(const Json& json) {
  allow_only(json, {"gbps", "latency_us"});
  const Fields fields(json);
  return {positive(fields, "gbps"), fields.number({"latency_us"}, 0, most).value_or(0)};
}

Topology read_topology(const Json& json) {
  allow_only(json, {"pair", "pair_ranks", "ranks_per_node", "node", "serial"});
  const Fields fields(json);
  if (fields.has({"node"}) != fields.has({"ranks_per_node"}))
    throw InvalidArgument("ranks_per_node and node belong together");
  Topology topology;
  if (const Json* pair = fields.object({"pair"}))
    topology.pair = within("pair", [&] { return read_link(*pair); });
  topology.pair_ranks = static_cast<std::int32_t>(fields.integer({"pair_ranks"}, 2, most_count).value_or(2));
  topology.serial = fields.flag({"serial"}).value_or(false);
  if (const Json* node = fields.object({"node"})) {
    topology.node = within("node", [&] { return read_link(*node); });
    topology.ranks_per_node = count(fields, "ranks_per_node", 1);
  }
  return topology;
}

Contention read_contention(const Json& json) {
  allow_only(json, {"memory_share",
                    "product_misses",
                    "attention_misses",
                    "pass_misses",
                    "channel_gbps",
                    "engine_traffic",
                    "store_slowdown",
                    "chunk_bytes",
                    "chunk_us",
                    "collective_slowdown",
                    "wake_us",
                    "slowed_by_allreduce",
                    "slowed_by_reducescatter",
                    "slowed_by_allgather",
                    "slowed_by_alltoall",
                    "lone_latency",
                    "steals",
                    "persistent",
                    "product_residual",
                    "collective_residual"});
  const Fields fields(json);
  const auto number = [&](const char* key, double largest) {
    return fields.number({key}, 0, largest).value_or(0);
  };
  Contention contention{.memory_share = number("memory_share", 1),
                        .channel_gbps = rate(fields, "channel_gbps"),
                        .chunk_bytes = rate(fields, "chunk_bytes"),
                        .engine_traffic = number("engine_traffic", most),
                        .store_slowdown = number("store_slowdown", most),
                        .chunk_us = fields.number({"chunk_us"}, 0, most),
                        .collective_slowdown = number("collective_slowdown", most),
                        .steals = number("steals", 1),
                        .wake_us = number("wake_us", most),
                        .lone_latency = number("lone_latency", most),
                        .persistent = fields.flag({"persistent"}).value_or(false),
                        .product_residual = fields.number({"product_residual"}, 0, most),
                        .collective_residual = fields.number({"collective_residual"}, 0, most)};
  for (const ComputationKind kind : all_computation_kinds)
    contention.misses_of(kind) = fields.number({fmt::format("{}_misses", name(kind)).c_str()}, 0, 1);
  for (const Traffic traffic : all_traffic)
    contention.slowed_by(traffic) = number(fmt::format("slowed_by_{}", name(traffic)).c_str(), most);
  return contention;
}

EnginePhases read_engine(const Json& json) {
  allow_only(json, {"control_us", "schedule_us", "copy_us", "gbps", "sync_us", "fetch_us", "queued_us",
                    "poll_us", "broadcast_us", "swap_us"});
  const Fields fields(json);
  const auto number = [&](const char* key) { return fields.number({key}, 0, most).value_or(0); };
  return {.control_us = number("control_us"),
          .schedule_us = number("schedule_us"),
          .copy_us = number("copy_us"),
          .gbps = rate(fields, "gbps"),
          .sync_us = number("sync_us"),
          .fetch_us = number("fetch_us"),
          .queued_us = number("queued_us"),
          .poll_us = number("poll_us"),
          .broadcast_us = number("broadcast_us"),
          .swap_us = number("swap_us")};
}

/// Keys that hold figures.
const std::set<std::string> figures{"workers",
                                    "collective_workers",
                                    "tile",
                                    "link",
                                    "engine",
                                    "peer_memory",
                                    "memory_gbps",
                                    "begin_us",
                                    "launch_us",
                                    "signal_us",
                                    "pass_gbps",
                                    "topology",
                                    "contention",
                                    "tiles",
                                    "curves",
                                    "ranks",
                                    "whole_tiles",
                                    "attention",
                                    "library_rate",
                                    "library_tail",
                                    "reduce_gbps",
                                    "sync_us",
                                    "lone_latency",
                                    "picking_rate",
                                    "split_gbps",
                                    "hooked_us",
                                    "store_gbps",
                                    "early_kernels",
                                    "contention_samples",
                                    "throttle",
                                    "parts_gbps",
                                    "pass_us",
                                    "load_us"};

/// Checks that every figure has a source, and that every source belongs to a figure.
void check_sources(const Json& json, const Machine& machine) {
  std::set<std::string> sourced;
  for (const Source& source : machine.sources) {
    if (!figures.contains(source.of))
      throw InvalidArgument(fmt::format("sources: {} is not a figure of a profile", show(Json(source.of))));
    sourced.insert(source.of);
  }
  for (const auto& [key, value] : json.items())
    if (figures.contains(key) && !sourced.contains(key))
      throw InvalidArgument(fmt::format("{} has no source: add an entry for it to 'sources'", key));
}

Machine read(const Json& json) {
  std::set<std::string> keys = figures;
  keys.insert({"format", "version", "name", "sources"});
  if (!json.is_object()) throw InvalidArgument(fmt::format("a profile is an object, not {}", show(json)));
  const Fields fields(json);
  if (const auto kind = fields.text({"format"}); kind != std::string(profile_format))
    throw InvalidArgument(fmt::format("format must be '{}'", profile_format));
  if (fields.required({"version"}, 1, most_count) != profile_version)
    throw InvalidArgument(fmt::format("version {} is not supported; expected {}",
                                      fields.required({"version"}, 1, most_count), profile_version));
  allow_only(json, keys);
  Machine machine;
  machine.name = required_text(fields, "name");
  machine.workers = count(fields, "workers", 1);
  machine.collective_workers =
      static_cast<std::int32_t>(fields.integer({"collective_workers"}, 0, machine.workers - 1).value_or(0));
  if (const Json* tile = fields.object({"tile"}))
    within("tile", [&] {
      allow_only(*tile, {"rows", "cols", "raster", "swizzle", "cluster_m"});
      const Fields at(*tile);
      machine.tile_rows = count(at, "rows", 1);
      machine.tile_cols = count(at, "cols", 1);
      machine.order = read_order(at);
      return 0;
    });
  if (const Json* link = fields.object({"link"}))
    machine.link = within("link", [&] { return read_link(*link); });
  if (const Json* engine = fields.object({"engine"}))
    machine.engine = within("engine", [&] { return read_engine(*engine); });
  machine.peer_memory = fields.flag({"peer_memory"}).value_or(true);
  machine.ranks = static_cast<std::int32_t>(fields.integer({"ranks"}, 0, most_count).value_or(0));
  machine.memory_gbps = rate(fields, "memory_gbps");
  machine.begin_us = fields.number({"begin_us"}, 0, most).value_or(0);
  machine.launch_us = fields.number({"launch_us"}, 0, most).value_or(0);
  machine.signal_us = fields.number({"signal_us"}, 0, most).value_or(0);
  machine.sync_us = fields.number({"sync_us"}, 0, most).value_or(0);
  machine.pass_us = fields.number({"pass_us"}, 0, most).value_or(0);
  machine.load_us = fields.number({"load_us"}, 0, most).value_or(0);
  machine.early_kernels = fields.flag({"early_kernels"}).value_or(false);
  machine.lone_latency = fields.number({"lone_latency"}, 0, most).value_or(0);
  machine.whole_tiles = fields.flag({"whole_tiles"}).value_or(true);
  machine.library_rate = fields.number({"library_rate"}, 1e-3, most).value_or(1);
  machine.library_tail = fields.number({"library_tail"}, 0, 1).value_or(1);
  machine.hooked_us = fields.number({"hooked_us"}, 0, most).value_or(0);
  machine.picking_rate = fields.number({"picking_rate"}, 1e-3, most).value_or(1);
  machine.pass_gbps = rate(fields, "pass_gbps");
  machine.store_gbps = rate(fields, "store_gbps");
  machine.reduce_gbps = rate(fields, "reduce_gbps");
  machine.parts_gbps = rate(fields, "parts_gbps");
  machine.split_gbps = rate(fields, "split_gbps");
  if (const Json* throttle = fields.object({"throttle"}))
    machine.throttle = within("throttle", [&] {
      allow_only(*throttle, {"after_us", "rate"});
      const Fields at(*throttle);
      return Throttle{positive(at, "after_us"), at.number({"rate"}, 1e-3, 1).value_or(1)};
    });
  if (const Json* topology = fields.object({"topology"}))
    machine.topology = within("topology", [&] { return read_topology(*topology); });
  if (const Json* contention = fields.object({"contention"}))
    machine.contention = within("contention", [&] { return read_contention(*contention); });
  machine.tiles = read_list(fields, "tiles", read_tile);
  machine.attention = read_list(fields, "attention", read_attention);
  machine.curves = read_list(fields, "curves", read_curve);
  machine.contention_samples = read_list(fields, "contention_samples", read_contention_sample);
  machine.sources = read_list(fields, "sources", read_source);
  check_sources(json, machine);
  return machine;
}

}  // namespace

Machine machine_from_json(std::string_view text) {
  return read(parse_json(text));
}

Machine read_machine(const std::string& path) {
  constexpr std::size_t most_bytes = 1 << 24;
  const std::string text = read_file(path, most_bytes);
  return within(path, [&] { return machine_from_json(text); });
}

}  // namespace shingle
