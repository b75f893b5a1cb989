// Machines by name, and nodes of several machines.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "base/file.hpp"
#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"

namespace shingle {
namespace {

namespace fs = std::filesystem;

constexpr double node_latency_us = 5;  // latency of a network if only its rate is given
constexpr std::string_view example = "'h200x8 * 512, 8x400Gb/s'";

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// Folders that may hold profiles, in order of preference.
std::vector<fs::path> folders() {
  std::vector<fs::path> found;
  const char* own = std::getenv("SHINGLE_MACHINES");
  if (own != nullptr && *own != '\0') found.emplace_back(own);
  if (const std::string shipped = find_shipped("machines/h200x8.json"); !shipped.empty())
    found.push_back(fs::path(shipped).parent_path());
  return found;
}

Machine named(std::string_view name) {
  if (name.find('/') != std::string_view::npos || name.ends_with(".json"))
    return read_machine(std::string(name));
  std::error_code error;
  for (const fs::path& folder : folders())
    if (const fs::path file = folder / fmt::format("{}.json", name); fs::is_regular_file(file, error))
      return read_machine(file.string());
  const auto known = machine_names();
  throw InvalidArgument(
      known.empty()
          ? fmt::format("no machine '{}': no profiles were found; name a file, or a folder of them in "
                        "SHINGLE_MACHINES",
                        name)
          : fmt::format("no machine '{}' (a file, or one of {})", name, fmt::join(known, ", ")));
}

/// Parses "8x400Gb/s" as eight parallel links and "400Gb/s,3us" as one.
Link node_link(std::string_view text) {
  std::int32_t links = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), links);
  const bool several = error == std::errc{} && end != text.data() + text.size() && *end == 'x';
  if (several) text.remove_prefix(static_cast<std::size_t>(end + 1 - text.data()));
  Link link = parse_link(text);
  if (link.gbps <= 0 || links < 1)
    throw InvalidArgument(
        fmt::format("'{}' is not a link between nodes such as 8x400Gb/s or 400Gb/s,3us", text));
  if (text.find(',') == std::string_view::npos) link.latency_us = node_latency_us;
  if (several) link.gbps *= links;
  return link;
}

/// Replaces the source of a figure.
void cite(Machine& machine, std::string_view of, std::string note) {
  std::erase_if(machine.sources, [&](const Source& source) { return source.of == of; });
  machine.sources.push_back({std::string(of), Origin::assumed, std::move(note)});
}

}  // namespace

std::vector<std::string> machine_names() {
  std::set<std::string> names;
  std::error_code error;
  for (const fs::path& folder : folders())
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  return {names.begin(), names.end()};
}

Machine machine_of_nodes(Machine node, int nodes, const Link& link) {
  constexpr std::int64_t most_ranks = 1 << 20;
  if (node.ranks < 1)
    throw InvalidArgument(fmt::format("{} has no 'ranks', so the ranks of a node are unknown", node.name));
  if (node.topology.ranks_per_node > 0)
    throw InvalidArgument(fmt::format("{} already has several nodes; leave out the '*'", node.name));
  if (nodes < 1 || std::int64_t{nodes} * node.ranks > most_ranks)
    throw InvalidArgument(fmt::format("{} nodes of {} ranks: the number of ranks is outside [1, {}]", nodes,
                                      node.ranks, most_ranks));
  node.topology.ranks_per_node = node.ranks;
  node.topology.node = link;
  cite(node, "topology", fmt::format("{} nodes of {}, as asked for", nodes, node.name));
  cite(node, "ranks", fmt::format("{} nodes of {}", nodes, node.ranks));
  node.name = fmt::format("{} * {}, {}GB/s,{}us", node.name, nodes, link.gbps, link.latency_us);
  node.ranks *= nodes;
  return node;
}

Machine machine_from_spec(std::string_view spec) {
  const auto star = spec.find('*');
  if (star == std::string_view::npos) return named(trim(spec));
  const std::string_view after = spec.substr(star + 1);
  const auto comma = after.find(',');
  if (comma == std::string_view::npos)
    throw InvalidArgument(fmt::format("'{}' lacks the link between nodes; write {}", spec, example));
  const std::string_view count = trim(after.substr(0, comma));
  int nodes = 0;
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), nodes);
  if (error != std::errc{} || end != count.data() + count.size())
    throw InvalidArgument(fmt::format("'{}' is not a number of nodes; write {}", count, example));
  return machine_of_nodes(named(trim(spec.substr(0, star))), nodes, node_link(trim(after.substr(comma + 1))));
}

}  // namespace shingle
