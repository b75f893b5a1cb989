#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "shingle/machine/profile.hpp"

namespace shingle {
namespace {

using nlohmann::ordered_json;

ordered_json link_json(const Link& link) {
  return {{"gbps", link.gbps}, {"latency_us", link.latency_us}};
}

ordered_json topology_json(const Topology& topology) {
  ordered_json json = ordered_json::object();
  if (topology.pair.paced()) {
    json["pair"] = link_json(topology.pair);
    if (topology.pair_ranks != 2) json["pair_ranks"] = topology.pair_ranks;
  }
  if (topology.serial) json["serial"] = true;
  if (topology.ranks_per_node > 0) {
    json["ranks_per_node"] = topology.ranks_per_node;
    json["node"] = link_json(topology.node);
  }
  return json;
}

/// Writes one line for each key, and one for each element of a list.
std::string by_lines(const ordered_json& json) {
  const auto text = [](const ordered_json& value) {
    return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
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

/// Writes the phases that every engine has, and the optional ones that differ from 0.
ordered_json engine_json(const EnginePhases& engine) {
  ordered_json json = {{"control_us", engine.control_us},
                       {"schedule_us", engine.schedule_us},
                       {"copy_us", engine.copy_us},
                       {"gbps", engine.gbps},
                       {"sync_us", engine.sync_us}};
  const std::pair<const char*, double> more[] = {{"fetch_us", engine.fetch_us},
                                                 {"queued_us", engine.queued_us},
                                                 {"poll_us", engine.poll_us},
                                                 {"broadcast_us", engine.broadcast_us},
                                                 {"swap_us", engine.swap_us}};
  for (const auto& [key, us] : more)
    if (us > 0) json[key] = us;
  return json;
}

ordered_json tile_json(const Machine& m) {
  ordered_json tile = {{"rows", m.tile_rows}, {"cols", m.tile_cols}};
  if (m.order.raster == Raster::along_m) tile["raster"] = "along_m";
  if (m.order.swizzle != 1) tile["swizzle"] = m.order.swizzle;
  if (m.order.cluster_m != 1) tile["cluster_m"] = m.order.cluster_m;
  return tile;
}

ordered_json contention_json(const Contention& c) {
  ordered_json json = {{"memory_share", c.memory_share},
                       {"channel_gbps", c.channel_gbps},
                       {"chunk_bytes", c.chunk_bytes},
                       {"collective_slowdown", c.collective_slowdown},
                       {"persistent", c.persistent}};
  for (const ComputationKind kind : all_computation_kinds)
    if (const auto missed = c.misses_of(kind)) json[fmt::format("{}_misses", name(kind))] = *missed;
  for (const Traffic traffic : all_traffic)
    if (const double slowed = c.slowed_by(traffic); slowed > 0)
      json[fmt::format("slowed_by_{}", name(traffic))] = slowed;
  if (c.engine_traffic > 0) json["engine_traffic"] = c.engine_traffic;
  if (c.store_slowdown > 0) json["store_slowdown"] = c.store_slowdown;
  if (c.wake_us > 0) json["wake_us"] = c.wake_us;
  if (c.lone_latency > 0) json["lone_latency"] = c.lone_latency;
  if (c.steals > 0) json["steals"] = c.steals;
  if (c.chunk_us) json["chunk_us"] = *c.chunk_us;
  if (c.product_residual) json["product_residual"] = *c.product_residual;
  if (c.collective_residual) json["collective_residual"] = *c.collective_residual;
  return json;
}

ordered_json contention_sample_json(const ContentionSample& s) {
  ordered_json json = {{"traffic", name(s.traffic)}, {"ranks", s.ranks}, {"workers", s.workers}};
  if (s.chunk_bytes > 0) json["chunk_bytes"] = s.chunk_bytes;
  json.update({{"bytes", s.bytes},
               {"us", s.us},
               {"beside_us", s.beside_us},
               {"product_us", s.product_us},
               {"product_beside_us", s.product_beside_us}});
  if (s.calls > 0) json["calls"] = s.calls;
  if (s.computation != ComputationKind::product) json["computation"] = name(s.computation);
  if (s.engines) json["engines"] = true;
  if (s.moved.once > 0) json["moved_bytes"] = s.moved.once;
  if (s.moved.again > 0) json["moved_again_bytes"] = s.moved.again;
  return json;
}

}  // namespace

std::string to_json(const Machine& m) {
  ordered_json json;
  const auto sourced = [&](const char* key) {
    return std::ranges::any_of(m.sources, [&](const Source& s) { return s.of == key; });
  };
  json["format"] = profile_format;
  json["version"] = profile_version;
  json["name"] = m.name;
  json["workers"] = m.workers;
  if (m.ranks > 0) json["ranks"] = m.ranks;
  if (m.collective_workers > 0) json["collective_workers"] = m.collective_workers;
  if (sourced("tile")) json["tile"] = tile_json(m);
  if (m.link.paced()) json["link"] = link_json(m.link);
  if (m.engine.paced()) json["engine"] = engine_json(m.engine);
  if (sourced("peer_memory")) json["peer_memory"] = m.peer_memory;
  if (m.memory_gbps > 0) json["memory_gbps"] = m.memory_gbps;
  if (m.begin_us > 0) json["begin_us"] = m.begin_us;
  if (m.launch_us > 0) json["launch_us"] = m.launch_us;
  if (m.signal_us > 0) json["signal_us"] = m.signal_us;
  if (m.sync_us > 0) json["sync_us"] = m.sync_us;
  if (m.pass_us > 0) json["pass_us"] = m.pass_us;
  if (m.load_us > 0) json["load_us"] = m.load_us;
  if (m.early_kernels) json["early_kernels"] = true;
  if (m.lone_latency > 0) json["lone_latency"] = m.lone_latency;
  if (m.store_gbps > 0) json["store_gbps"] = m.store_gbps;
  if (m.pass_gbps > 0) json["pass_gbps"] = m.pass_gbps;
  if (m.reduce_gbps > 0) json["reduce_gbps"] = m.reduce_gbps;
  if (m.parts_gbps > 0) json["parts_gbps"] = m.parts_gbps;
  if (m.split_gbps > 0) json["split_gbps"] = m.split_gbps;
  if (!m.whole_tiles) json["whole_tiles"] = false;
  if (m.hooked_us > 0) json["hooked_us"] = m.hooked_us;
  if (m.library_rate != 1) json["library_rate"] = m.library_rate;
  if (m.library_tail != 1) json["library_tail"] = m.library_tail;
  if (m.picking_rate != 1) json["picking_rate"] = m.picking_rate;
  if (m.throttle != Throttle{})
    json["throttle"] = {{"after_us", m.throttle.after_us}, {"rate", m.throttle.rate}};
  if (m.topology != Topology{}) json["topology"] = topology_json(m.topology);
  if (m.contention != Contention{}) json["contention"] = contention_json(m.contention);
  for (const TileRate& t : m.tiles) {
    json["tiles"].push_back(
        {{"rows", t.rows}, {"cols", t.cols}, {"fixed_us", t.fixed_us}, {"us_per_k", t.us_per_k}});
    if (t.store_gbps > 0) json["tiles"].back()["store_gbps"] = t.store_gbps;
    if (t.alone_store_gbps > 0) json["tiles"].back()["alone_store_gbps"] = t.alone_store_gbps;
  }
  for (const auto& [of, rate] : m.attention) {
    ordered_json one{{"queries", of.queries}, {"keys", of.keys}, {"heads", of.heads}};
    if (of.head_dim != AttentionSize{}.head_dim) one["head_dim"] = of.head_dim;
    one["causal"] = of.causal;
    if (of.backward) one["backward"] = true;
    one["rate"] = rate;
    json["attention"].push_back(std::move(one));
  }
  for (const Curve& c : m.curves) {
    ordered_json samples = ordered_json::array();
    for (const Sample& s : c.samples) samples.push_back({{"bytes", s.bytes}, {"us", s.us}});
    json["curves"].push_back({{"traffic", name(c.traffic)},
                              {"ranks", c.ranks},
                              {"workers", c.workers},
                              {"samples", std::move(samples)}});
  }
  for (const ContentionSample& s : m.contention_samples)
    json["contention_samples"].push_back(contention_sample_json(s));
  for (const Source& s : m.sources)
    json["sources"].push_back({{"of", s.of}, {"origin", name(s.origin)}, {"note", s.note}});
  return by_lines(json);
}

}  // namespace shingle
