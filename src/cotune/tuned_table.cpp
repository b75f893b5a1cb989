#include "tuned_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "base/file.hpp"
#include "base/json_fields.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

using Json = nlohmann::json;

constexpr std::string_view format = "shingle-nccl-tuning";
constexpr std::size_t most_bytes = std::size_t{1} << 24;
constexpr std::int64_t most_ranks = 1 << 20;

constexpr std::array<std::string_view, nccl_collectives> collectives{"broadcast", "reduce", "allgather",
                                                                     "reducescatter", "allreduce"};

TunedKey read_key(const Fields& fields) {
  TunedKey key;
  key.collective = parse_nccl_collective(fields.text({"collective"}).value_or(""));
  key.size_class = static_cast<int>(fields.required({"size_class"}, 0, size_classes - 1));
  key.ranks = static_cast<int>(fields.required({"ranks"}, 2, most_ranks));
  key.nodes = static_cast<int>(fields.integer({"nodes"}, 1, key.ranks).value_or(1));
  if (const auto ordinal = fields.integer({"communicator"}, 0, most_ranks))
    key.communicator = static_cast<int>(*ordinal);
  return key;
}

CollectiveConfig read_config(const Fields& fields) {
  constexpr std::int64_t most_channels = 64, most_threads = 640, warp = 32;
  CollectiveConfig config;
  config.algorithm = parse_algorithm(fields.text({"algorithm"}).value_or("auto"));
  config.protocol = parse_protocol(fields.text({"protocol"}).value_or("auto"));
  if ((config.algorithm == Algorithm::automatic) != (config.protocol == Protocol::automatic))
    throw InvalidArgument("give both algorithm and protocol, or neither");
  config.transport = parse_transport(fields.text({"transport"}).value_or("auto"));
  if (config.by_engines())
    throw InvalidArgument("transport = 'engines' is not NCCL's: leave it out, or give p2p, shm or net");
  config.channels = static_cast<std::int32_t>(fields.integer({"channels"}, 0, most_channels).value_or(0));
  config.chunk_bytes = fields.integer({"chunk_bytes"}, 0, most_chunk_bytes).value_or(0);
  if (config.chunk_bytes > 0 && config.chunk_bytes < least_chunk_bytes)
    throw InvalidArgument(fmt::format("chunk_bytes = {} is below {}; leave it out for NCCL's own choice",
                                      config.chunk_bytes, least_chunk_bytes));
  config.threads = static_cast<std::int32_t>(fields.integer({"threads"}, 0, most_threads).value_or(0));
  if (config.threads % warp != 0)
    throw InvalidArgument(fmt::format("threads = {} is not a multiple of {}", config.threads, warp));
  return config;
}

TunedEntry read_entry(const Json& json) {
  constexpr double longest_us = std::numeric_limits<double>::max();
  if (!json.is_object()) throw InvalidArgument(fmt::format("an entry must be an object, not {}", show(json)));
  const Fields fields(json);
  return {.key = read_key(fields),
          .config = read_config(fields),
          .iteration_us = fields.number({"iteration_us"}, 0, longest_us).value_or(0),
          .default_us = fields.number({"default_us"}, 0, longest_us).value_or(0)};
}

std::string entry_text(const TunedEntry& entry) {
  const TunedKey& key = entry.key;
  const CollectiveConfig& config = entry.config;
  std::string text = fmt::format(R"({{"collective": "{}", "size_class": {}, "ranks": {}, "nodes": {})",
                                 name(key.collective), key.size_class, key.ranks, key.nodes);
  if (key.communicator) text += fmt::format(R"(, "communicator": {})", *key.communicator);
  if (config.algorithm != Algorithm::automatic)
    text += fmt::format(R"(, "algorithm": "{}", "protocol": "{}")", name(config.algorithm),
                        name(config.protocol));
  if (config.transport != Transport::automatic)
    text += fmt::format(R"(, "transport": "{}")", name(config.transport));
  if (config.channels > 0) text += fmt::format(R"(, "channels": {})", config.channels);
  if (config.chunk_bytes > 0) text += fmt::format(R"(, "chunk_bytes": {})", config.chunk_bytes);
  if (config.threads > 0) text += fmt::format(R"(, "threads": {})", config.threads);
  if (entry.iteration_us > 0) text += fmt::format(R"(, "iteration_us": {})", Json(entry.iteration_us).dump());
  if (entry.default_us > 0) text += fmt::format(R"(, "default_us": {})", Json(entry.default_us).dump());
  return text + "}";
}

auto find(TunedTable& table, const TunedKey& key) {
  return std::ranges::find(table.entries, key, &TunedEntry::key);
}

}  // namespace

std::string_view name(NcclCollective collective) {
  return collectives[static_cast<std::size_t>(collective)];
}

NcclCollective parse_nccl_collective(std::string_view text) {
  const auto found = std::ranges::find(collectives, text);
  if (found == collectives.end())
    throw InvalidArgument(fmt::format("unknown collective '{}' (one of {})", text,
                                      fmt::join(collectives.begin(), collectives.end(), ", ")));
  return static_cast<NcclCollective>(found - collectives.begin());
}

void store(TunedTable& table, TunedEntry entry) {
  const auto found = find(table, entry.key);
  if (found == table.entries.end())
    table.entries.push_back(std::move(entry));
  else
    *found = std::move(entry);
}

std::string to_json(const TunedTable& table) {
  std::string text = fmt::format(R"({{"format": "{}", "version": {}, )", format, tuned_table_version);
  if (!table.why.empty()) text += fmt::format(R"("why": {}, )", Json(table.why).dump());
  text += R"("entries": [)";
  const char* separator = "\n";
  for (const TunedEntry& entry : table.entries) text += std::exchange(separator, ",\n") + entry_text(entry);
  return text + "\n]}\n";
}

TunedTable tuned_table_from_json(std::string_view text) {
  const Json json = parse_json(text);
  const Fields fields(json);
  if (!fields.is_text({"format"}, format)) throw InvalidArgument(fmt::format("format must be '{}'", format));
  const std::int64_t version = fields.required({"version"}, 0, std::numeric_limits<std::int32_t>::max());
  if (version != tuned_table_version)
    throw InvalidArgument(
        fmt::format("version {} is not supported; expected {}", version, tuned_table_version));
  const Json* list = fields.list({"entries"});
  if (list == nullptr) throw InvalidArgument("entries are missing");
  TunedTable table{{}, fields.text({"why"}).value_or("")};
  std::set<TunedKey> keys;
  for (const Json& element : *list) {
    TunedEntry entry = read_entry(element);
    if (!keys.insert(entry.key).second)
      throw InvalidArgument(fmt::format("two entries for {}", describe(entry.key)));
    table.entries.push_back(std::move(entry));
  }
  return table;
}

TunedTable read_tuned_table(const std::string& path) {
  const std::string text = read_file(path, most_bytes);
  try {
    return tuned_table_from_json(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
}

std::string describe(const TunedKey& key) {
  const double least = static_cast<double>(std::uint64_t{1} << key.size_class);
  std::string text = fmt::format("{} of {} to {} on {} ranks", name(key.collective), format_bytes(least),
                                 format_bytes(2 * least), key.ranks);
  if (key.nodes > 1) text += fmt::format(" of {} nodes", key.nodes);
  if (key.communicator) text += fmt::format(", communicator {}", *key.communicator);
  return text;
}

}  // namespace shingle
