#include "shingle/base/collective_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "names.hpp"
#include "shingle/base/units.hpp"

namespace shingle {
namespace {

constexpr Names<Algorithm, 4> algorithms{{{Algorithm::automatic, "auto"},
                                          {Algorithm::tree, "tree"},
                                          {Algorithm::ring, "ring"},
                                          {Algorithm::pat, "pat"}}};
constexpr Names<Protocol, 4> protocols{{{Protocol::automatic, "auto"},
                                        {Protocol::ll, "ll"},
                                        {Protocol::ll128, "ll128"},
                                        {Protocol::simple, "simple"}}};
constexpr Names<Transport, 5> transports{{{Transport::automatic, "auto"},
                                          {Transport::p2p, "p2p"},
                                          {Transport::shm, "shm"},
                                          {Transport::net, "net"},
                                          {Transport::engines, "engines"}}};

}  // namespace

std::string_view name(Algorithm algorithm) {
  return name_in(algorithms, algorithm);
}
std::string_view name(Protocol protocol) {
  return name_in(protocols, protocol);
}
std::string_view name(Transport transport) {
  return name_in(transports, transport);
}

Algorithm parse_algorithm(std::string_view text) {
  return parse_in(algorithms, "algorithm", text);
}
Protocol parse_protocol(std::string_view text) {
  return parse_in(protocols, "protocol", text);
}
Transport parse_transport(std::string_view text) {
  return parse_in(transports, "transport", text);
}

std::string describe(const CollectiveConfig& config) {
  std::vector<std::string> parts;
  const auto counted = [&](std::int32_t count, std::string_view what) {
    if (count > 0) parts.push_back(fmt::format("{} {}{}", count, what, count > 1 ? "s" : ""));
  };
  counted(config.channels, config.by_engines() ? "worker" : "channel");
  if (config.chunk_bytes > 0) parts.push_back(format_bytes(static_cast<double>(config.chunk_bytes)));
  if (config.threads > 0) parts.push_back(fmt::format("{} threads", config.threads));
  if (config.algorithm != Algorithm::automatic) parts.emplace_back(name(config.algorithm));
  if (config.protocol != Protocol::automatic) parts.emplace_back(name(config.protocol));
  if (config.transport != Transport::automatic) parts.emplace_back(name(config.transport));
  if (config.spared > 0) parts.push_back(fmt::format("{} spared", config.spared));
  if (config.delay > 0) parts.push_back(fmt::format("{} later", config.delay));
  return parts.empty() ? "default" : fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace shingle
