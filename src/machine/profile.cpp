#include "shingle/machine/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/json_fields.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/file.hpp"

namespace shingle {
namespace {

using Json = nlohmann::json;

constexpr std::string_view format = "shingle-machine";
constexpr double most = 1e12;  // of any rate or time
constexpr std::int64_t most_count = 1 << 20;
constexpr Origin origins[] = {Origin::measured, Origin::datasheet, Origin::paper, Origin::fitted,
                              Origin::assumed};

/// An error about one element of a list, or about an object, says which.
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
  return *value;
}

std::int32_t count(const Fields& fields, const char* key, std::int64_t least) {
  return static_cast<std::int32_t>(fields.required({key}, least, most_count));
}

std::string required_text(const Fields& fields, const char* key) {
  const auto text = fields.text({key});
  if (!text) throw InvalidArgument(fmt::format("missing key '{}'", key));
  return *text;
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
  allow_only(json, {"rows", "cols", "fixed_us", "us_per_k"});
  const Fields fields(json);
  return {count(fields, "rows", 1), count(fields, "cols", 1),
          fields.number({"fixed_us"}, 0, most).value_or(0), positive(fields, "us_per_k")};
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

Source read_source(const Json& json) {
  allow_only(json, {"of", "origin", "note"});
  const Fields fields(json);
  const std::string origin = required_text(fields, "origin");
  for (const Origin known : origins)
    if (name(known) == origin)
      return {required_text(fields, "of"), known, fields.text({"note"}).value_or("")};
  throw InvalidArgument(
      fmt::format("origin {} is none of measured, datasheet, paper, fitted, assumed", show(Json(origin))));
}

EnginePhases read_engine(const Json& json) {
  allow_only(json, {"control_us", "schedule_us", "copy_us", "gbps", "sync_us"});
  const Fields fields(json);
  const auto number = [&](const char* key) { return fields.number({key}, 0, most).value_or(0); };
  return {number("control_us"), number("schedule_us"), number("copy_us"), number("gbps"), number("sync_us")};
}

/// The keys that hold figures.
const std::set<std::string> figures{
    "workers",     "collective_workers", "tile",      "link",  "engine", "peer_memory",
    "memory_gbps", "launch_us",          "signal_us", "tiles", "curves", "ranks"};

/// Every figure has a source, and every source is of a figure.
void check_sources(const Json& json, const Machine& machine) {
  std::set<std::string> sourced;
  for (const Source& source : machine.sources) {
    if (!figures.contains(source.of))
      throw InvalidArgument(fmt::format("sources: {} is no figure of a profile", show(Json(source.of))));
    sourced.insert(source.of);
  }
  for (const auto& [key, value] : json.items())
    if (figures.contains(key) && !sourced.contains(key))
      throw InvalidArgument(fmt::format("{} has no source: say in 'sources' where it comes from", key));
}

/// A line for each key, and for each element of a list.
std::string by_lines(const nlohmann::ordered_json& json) {
  const auto text = [](const nlohmann::ordered_json& value) {
    return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  };
  std::string out = "{";
  for (const auto& [key, value] : json.items()) {
    out += fmt::format("{}\n  \"{}\": ", out.size() > 1 ? "," : "", key);
    if (!value.is_array()) {
      out += text(value);
      continue;
    }
    for (std::size_t i = 0; i < value.size(); ++i) out += (i == 0 ? "[\n    " : ",\n    ") + text(value[i]);
    out += "\n  ]";
  }
  return out + "\n}\n";
}

Machine read(const Json& json) {
  std::set<std::string> keys = figures;
  keys.insert({"format", "version", "name", "sources"});
  if (!json.is_object()) throw InvalidArgument(fmt::format("a profile is an object, not {}", show(json)));
  const Fields fields(json);
  if (const auto kind = fields.text({"format"}); kind != std::string(format))
    throw InvalidArgument(fmt::format("format must be '{}'", format));
  if (fields.required({"version"}, 1, most_count) != profile_version)
    throw InvalidArgument(
        fmt::format("version {} is not {}", fields.required({"version"}, 1, most_count), profile_version));
  allow_only(json, keys);
  Machine machine;
  machine.name = required_text(fields, "name");
  machine.workers = count(fields, "workers", 1);
  machine.collective_workers =
      static_cast<std::int32_t>(fields.integer({"collective_workers"}, 0, machine.workers - 1).value_or(0));
  if (const Json* tile = fields.object({"tile"}))
    within("tile", [&] {
      allow_only(*tile, {"rows", "cols"});
      machine.tile_rows = count(Fields(*tile), "rows", 1);
      machine.tile_cols = count(Fields(*tile), "cols", 1);
      return 0;
    });
  if (const Json* link = fields.object({"link"}))
    within("link", [&] {
      allow_only(*link, {"gbps", "latency_us"});
      machine.link = {positive(Fields(*link), "gbps"),
                      Fields(*link).number({"latency_us"}, 0, most).value_or(0)};
      return 0;
    });
  if (const Json* engine = fields.object({"engine"}))
    machine.engine = within("engine", [&] { return read_engine(*engine); });
  machine.peer_memory = fields.flag({"peer_memory"}).value_or(true);
  machine.ranks = static_cast<std::int32_t>(fields.integer({"ranks"}, 0, most_count).value_or(0));
  machine.memory_gbps = fields.number({"memory_gbps"}, 0, most).value_or(0);
  machine.launch_us = fields.number({"launch_us"}, 0, most).value_or(0);
  machine.signal_us = fields.number({"signal_us"}, 0, most).value_or(0);
  machine.tiles = read_list(fields, "tiles", read_tile);
  machine.curves = read_list(fields, "curves", read_curve);
  machine.sources = read_list(fields, "sources", read_source);
  check_sources(json, machine);
  return machine;
}

}  // namespace

Machine machine_from_json(std::string_view text) {
  return read(parse_json(text));
}

std::string to_json(const Machine& m) {
  nlohmann::ordered_json json;
  const auto sourced = [&](const char* key) {
    return std::ranges::any_of(m.sources, [&](const Source& s) { return s.of == key; });
  };
  json["format"] = format;
  json["version"] = profile_version;
  json["name"] = m.name;
  json["workers"] = m.workers;
  if (m.ranks > 0) json["ranks"] = m.ranks;
  if (m.collective_workers > 0) json["collective_workers"] = m.collective_workers;
  if (sourced("tile")) json["tile"] = {{"rows", m.tile_rows}, {"cols", m.tile_cols}};
  if (m.link.paced()) json["link"] = {{"gbps", m.link.gbps}, {"latency_us", m.link.latency_us}};
  if (m.engine.paced())
    json["engine"] = {{"control_us", m.engine.control_us},
                      {"schedule_us", m.engine.schedule_us},
                      {"copy_us", m.engine.copy_us},
                      {"gbps", m.engine.gbps},
                      {"sync_us", m.engine.sync_us}};
  if (sourced("peer_memory")) json["peer_memory"] = m.peer_memory;
  if (m.memory_gbps > 0) json["memory_gbps"] = m.memory_gbps;
  if (m.launch_us > 0) json["launch_us"] = m.launch_us;
  if (m.signal_us > 0) json["signal_us"] = m.signal_us;
  for (const TileRate& t : m.tiles)
    json["tiles"].push_back(
        {{"rows", t.rows}, {"cols", t.cols}, {"fixed_us", t.fixed_us}, {"us_per_k", t.us_per_k}});
  for (const Curve& c : m.curves) {
    nlohmann::ordered_json samples = nlohmann::ordered_json::array();
    for (const Sample& s : c.samples) samples.push_back({{"bytes", s.bytes}, {"us", s.us}});
    json["curves"].push_back({{"traffic", name(c.traffic)},
                              {"ranks", c.ranks},
                              {"workers", c.workers},
                              {"samples", std::move(samples)}});
  }
  for (const Source& s : m.sources)
    json["sources"].push_back({{"of", s.of}, {"origin", name(s.origin)}, {"note", s.note}});
  return by_lines(json);
}

Machine read_machine(const std::string& path) {
  constexpr std::size_t most_bytes = 1 << 24;
  const std::string text = read_file(path, most_bytes);
  return within(path, [&] { return machine_from_json(text); });
}

}  // namespace shingle
