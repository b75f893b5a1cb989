#include "shingle/base/collective_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

using Names = std::array<std::string_view, 4>;  // in the order of the enumeration

constexpr Names algorithms{"auto", "tree", "ring", "pat"};
constexpr Names protocols{"auto", "ll", "ll128", "simple"};
constexpr Names transports{"auto", "p2p", "shm", "net"};

template <class Key>
Key parse_in(const Names& names, std::string_view what, std::string_view text) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return static_cast<Key>(i);
  throw InvalidArgument(fmt::format("unknown {} '{}' (one of {})", what, text, fmt::join(names, ", ")));
}

}  // namespace

std::string_view name(Algorithm algorithm) {
  return algorithms[static_cast<std::size_t>(algorithm)];
}
std::string_view name(Protocol protocol) {
  return protocols[static_cast<std::size_t>(protocol)];
}
std::string_view name(Transport transport) {
  return transports[static_cast<std::size_t>(transport)];
}

Algorithm parse_algorithm(std::string_view text) {
  return parse_in<Algorithm>(algorithms, "algorithm", text);
}
Protocol parse_protocol(std::string_view text) {
  return parse_in<Protocol>(protocols, "protocol", text);
}
Transport parse_transport(std::string_view text) {
  return parse_in<Transport>(transports, "transport", text);
}

std::string describe(const CollectiveConfig& config) {
  std::vector<std::string> parts;
  if (config.channels > 0)
    parts.push_back(fmt::format("{} channel{}", config.channels, config.channels > 1 ? "s" : ""));
  if (config.chunk_bytes > 0) parts.push_back(format_bytes(static_cast<double>(config.chunk_bytes)));
  if (config.threads > 0) parts.push_back(fmt::format("{} threads", config.threads));
  if (config.algorithm != Algorithm::automatic) parts.emplace_back(name(config.algorithm));
  if (config.protocol != Protocol::automatic) parts.emplace_back(name(config.protocol));
  if (config.transport != Transport::automatic) parts.emplace_back(name(config.transport));
  return parts.empty() ? "default" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace shingle
