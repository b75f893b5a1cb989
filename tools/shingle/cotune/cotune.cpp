// shingle cotune: finds configurations for the collectives of a training iteration, by simulation or by
// running it (Lagom).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/file.hpp"
#include "cotune/tuned_table.hpp"
#include "shingle/commands.hpp"
#include "shingle/common/console.hpp"
#include "shingle/common/table.hpp"
#include "shingle/cotune/co_tuner.hpp"
#include "shingle/cotune/overlap_source.hpp"

namespace shingle::cli {
namespace {

using cotune::Method;
using nlohmann::ordered_json;

/// Total time of all patterns of an iteration.
double iteration_us(const std::vector<Found>& all, Method method) {
  double us = 0;
  for (const Found& found : all) us += static_cast<double>(found.pattern.times) * found.us(method);
  return us;
}

ordered_json config_json(const CollectiveConfig& config) {
  ordered_json json = ordered_json::object();
  if (config.channels > 0) json["channels"] = config.channels;
  if (config.chunk_bytes > 0) json["chunk_bytes"] = config.chunk_bytes;
  if (config.threads > 0) json["threads"] = config.threads;
  if (config.algorithm != Algorithm::automatic) json["algorithm"] = name(config.algorithm);
  if (config.protocol != Protocol::automatic) json["protocol"] = name(config.protocol);
  if (config.transport != Transport::automatic) json["transport"] = name(config.transport);
  if (config.spared > 0) json["spared"] = config.spared;
  if (config.delay > 0) json["delay"] = config.delay;
  return json;
}

std::string json_text(const std::vector<Found>& all, const CoTuner& tuner, const std::string& table_note) {
  ordered_json json{
      {"machine", tuner.machine().name}, {"source", tuner.source()}, {"patterns", ordered_json::array()}};
  for (const Found& found : all) {
    const Workload& workload = found.pattern.workload;
    ordered_json pattern{{"name", found.pattern.name},
                         {"times", found.pattern.times},
                         {"world", workload.world},
                         {"dtype", name(workload.dtype)},
                         {"overlap", ordered_json::parse(lists_to_json(workload, -1))}};
    for (const auto& [method, result] : found.by) {
      ordered_json configs = ordered_json::array();
      for (const CollectiveConfig& config : result.configs) configs.push_back(config_json(config));
      pattern["methods"].push_back({{"method", cotune::name(method)},
                                    {"us", result.measured.makespan_us},
                                    {"compute_us", result.measured.compute_us},
                                    {"communication_us", result.measured.communication_us},
                                    {"evaluations", result.evaluations},
                                    {"configs", std::move(configs)}});
    }
    json["patterns"].push_back(std::move(pattern));
  }
  for (const auto& [method, result] : all.front().by)
    json["iteration_us"][std::string(cotune::name(method))] = iteration_us(all, method);
  if (!table_note.empty()) json["table"] = table_note;
  return json.dump(1) + "\n";
}

/// One line per collective with its configuration. Collectives of equal name, size and configuration share a
/// line with their mean times.
std::vector<Line> configs_of(const Found& found) {
  struct Row {
    std::string name, config, bytes;
    int count = 0;
    double library_us = 0, us = 0;
  };
  std::vector<Row> rows;
  const auto& items = found.pattern.workload.collectives;
  for (std::size_t j = 0; j < items.size(); ++j) {
    Row row{items[j].name, describe(found.ours().configs[j]),
            format_bytes(static_cast<double>(items[j].bytes))};
    auto known = std::ranges::find_if(rows, [&](const Row& other) {
      return std::tie(other.name, other.config, other.bytes) == std::tie(row.name, row.config, row.bytes);
    });
    if (known == rows.end()) known = rows.insert(known, std::move(row));
    ++known->count;
    known->library_us += found.by.front().second.measured.communication_us[j];
    known->us += found.ours().measured.communication_us[j];
  }
  std::vector<Line> lines{{"collective", "config", "bytes", "nccl", "lagom"}};
  for (const Row& row : rows)
    lines.push_back({row.count > 1 ? fmt::format("{} x {}", row.count, row.name) : row.name, row.config,
                     row.bytes, format_us(row.library_us / row.count), format_us(row.us / row.count)});
  return lines;
}

std::string text_of(const std::vector<Found>& all, const CoTuner& tuner) {
  Line head{"overlap", "times", "collectives"};
  for (const auto& [method, result] : all.front().by) head.emplace_back(cotune::name(method));
  head.insert(head.end(), {"over nccl", "over autoccl", "evaluations"});
  std::vector<Line> lines{head};
  const auto add = [&](Line line, auto&& us, const std::string& evaluations) {
    for (const auto& [method, result] : all.front().by) line.push_back(format_us(us(method)));
    const double ours = us(Method::together);
    line.push_back(fmt::format("{:.3f}x", us(Method::library) / ours));
    line.push_back(fmt::format("{:.3f}x", us(Method::alone) / ours));
    line.push_back(evaluations);
    lines.push_back(std::move(line));
  };
  for (const Found& found : all)
    add(
        {found.pattern.name, std::to_string(found.pattern.times),
         std::to_string(found.pattern.workload.collectives.size())},
        [&](Method method) { return found.us(method); }, std::to_string(found.ours().evaluations));
  if (all.size() > 1)
    add({"iteration", "", ""}, [&](Method method) { return iteration_us(all, method); }, "");
  std::string text = fmt::format("{}\n\n{}", tuner.title(), aligned(lines, {.words = 1, .keys = {0}}));
  for (const Found& found : all) {
    text += fmt::format("\n{}\n", found.pattern.name);
    text += aligned(configs_of(found), {.words = 2});
  }
  return text;
}

/// Numbers collectives by kind and size class, the most that NCCL's tuner plugin can distinguish.
std::vector<int> alike_for_nccl(const Workload& workload) {
  std::vector<std::pair<CollectiveKind, int>> known;
  std::vector<int> alike;
  for (const Workload::Collective& item : workload.collectives) {
    const std::pair key{item.kind, size_class(static_cast<std::uint64_t>(item.bytes))};
    const auto found = std::ranges::find(known, key);
    alike.push_back(static_cast<int>(found - known.begin()));
    if (found == known.end()) known.push_back(key);
  }
  return alike;
}

/// True if NCCL asks a tuner about it.
bool asks_tuners(const Workload::Collective& item) {
  return item.kind != CollectiveKind::alltoall;
}

/// What a table leaves out and why: "" if nothing.
std::string left_out(const std::vector<Found>& all, const TunedTable& table) {
  std::size_t exchanges = 0, standing = 0;
  int tried = 0;
  for (const Found& found : all) {
    tried += found.ours().evaluations;
    const auto& items = found.pattern.workload.collectives;
    for (std::size_t j = 0; j < items.size(); ++j)
      if (!asks_tuners(items[j]))
        ++exchanges;
      else if (std::ranges::none_of(table.entries, [&](const TunedEntry& entry) {
                 return name(entry.key.collective) == name(items[j].kind) &&
                        entry.key.size_class == size_class(static_cast<std::uint64_t>(items[j].bytes));
               }))
        ++standing;
  }
  const bool by_process = std::ranges::any_of(table.entries, [](const TunedEntry& entry) {
    return entry.config.threads > 0 || entry.config.transport != Transport::automatic;
  });
  std::vector<std::string> parts;
  if (standing > 0)
    parts.push_back(
        fmt::format("NCCL's choice stands for {} of the collectives: none of {} configurations was faster",
                    standing, tried));
  if (exchanges > 0)
    parts.push_back(
        fmt::format("all-to-alls ({}) are left out, as NCCL asks no tuner about them", exchanges));
  if (by_process)
    parts.emplace_back("threads and transports are the process's: shingle tune --nccl-env prints them");
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// Table of the collectives that NCCL asks a tuner about. If NCCL cannot distinguish two, the configuration
/// of the pattern with the longest total time wins.
TunedTable table_of(std::vector<Found> all, const Machine& machine) {
  std::ranges::stable_sort(all, {}, [](const Found& found) {
    return static_cast<double>(found.pattern.times) * found.us(Method::together);
  });
  TunedTable table;
  for (const Found& found : all) {
    const Workload& workload = found.pattern.workload;
    const int per_node = machine.topology.ranks_per_node;
    for (std::size_t j = 0; j < workload.collectives.size(); ++j) {
      const Workload::Collective& item = workload.collectives[j];
      const CollectiveConfig& config = found.ours().configs[j];
      if (!asks_tuners(item) || config == CollectiveConfig{}) continue;
      store(table, {.key = {.collective = parse_nccl_collective(name(item.kind)),
                            .size_class = size_class(static_cast<std::uint64_t>(item.bytes)),
                            .ranks = workload.world,
                            .nodes = per_node > 0 ? static_cast<int>(ceil_div(workload.world, per_node)) : 1},
                    .config = config,
                    .iteration_us = found.us(Method::together),
                    .default_us = found.us(Method::library)});
    }
  }
  table.why = left_out(all, table);
  return table;
}

/// Throws Unsupported if the table would have no entry. Called before any search.
void require_entries(const std::vector<OverlapPattern>& patterns) {
  std::size_t collectives = 0;
  for (const OverlapPattern& pattern : patterns) {
    const auto& items = pattern.workload.collectives;
    if (std::ranges::any_of(items, asks_tuners)) return;
    collectives += items.size();
  }
  throw Unsupported(
      collectives == 0
          ? "--table: the overlap has no collective to tune, so the table would be empty"
          : fmt::format(
                "--table: all {} collectives are all-to-alls, for which NCCL calls no tuner, so the table "
                "would be empty",
                collectives));
}

/// Describes the table's contents, and what it leaves out.
std::string note_on(const TunedTable& table, const std::string& file) {
  return fmt::format(
      "{}: {} {}{}{}", file, table.entries.empty() ? "no" : std::to_string(table.entries.size()),
      table.entries.size() == 1 ? "entry" : "entries", table.why.empty() ? "" : ": ", table.why);
}

}  // namespace

int cotune(const CotuneFlags& asked, const ProcessLaunch& launch) {
  CotuneFlags flags = asked;
  const bool predicts = !flags.machine.empty();
  if (predicts && !launch.speaks()) return 0;
  check_sources(flags);
  require_writable({{"--plan", flags.plan}, {"--table", flags.table}, {"--list", flags.list}});
  const std::optional<RecordedOverlap> recorded = record_of(flags, launch.speaks());
  const CoTuner tuner(flags, launch);
  std::vector<OverlapPattern> patterns = patterns_of(flags, recorded, tuner.ranks());
  if (!flags.table.empty()) require_entries(patterns);
  Progress progress(launch.speaks());
  std::vector<Found> all;
  for (OverlapPattern& pattern : patterns) {
    progress.now(pattern.name);
    // An iteration has many collectives that NCCL cannot distinguish.
    const bool by_class = recorded || !flags.table.empty();
    const auto alike = by_class ? alike_for_nccl(pattern.workload) : std::vector<int>{};
    all.push_back(tuner.search(std::move(pattern), flags.exhaustive, alike));
  }
  if (!launch.speaks()) return 0;
  std::string table_note;
  if (!flags.table.empty()) {
    const TunedTable table = table_of(all, tuner.machine());
    table_note = note_on(table, flags.table);
    write_file_atomically(flags.table, to_json(table));
  }
  progress.print(flags.format == Format::json
                     ? json_text(all, tuner, table_note)
                     : text_of(all, tuner) + (table_note.empty() ? "" : "\n" + table_note + "\n"));
  if (!flags.plan.empty()) {
    const ChunkedParams params = overlap_params(tuner.machine(), all.front().ours().configs);
    write_file_atomically(flags.plan,
                          to_json(*plan_chunked(all.front().pattern.workload, tuner.machine(), params)));
  }
  if (!flags.list.empty()) write_file_atomically(flags.list, lists_to_json(recorded->workload));
  return 0;
}

}  // namespace shingle::cli
