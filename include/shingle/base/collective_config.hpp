// How a collective library carries out one collective: what its tuner may set.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace shingle {

enum class Algorithm : std::uint8_t { automatic, tree, ring, pat };
enum class Protocol : std::uint8_t { automatic, ll, ll128, simple };
enum class Transport : std::uint8_t { automatic, p2p, shm, net };
/// "auto", "tree", …
std::string_view name(Algorithm algorithm);
std::string_view name(Protocol protocol);
std::string_view name(Transport transport);
/// Throw InvalidArgument.
Algorithm parse_algorithm(std::string_view text);
Protocol parse_protocol(std::string_view text);
Transport parse_transport(std::string_view text);

/// Zero or automatic is left to the library, so that {} is its default.
struct CollectiveConfig {
  std::int32_t channels = 0;     ///< NC: thread blocks, each of which occupies an SM
  std::int64_t chunk_bytes = 0;  ///< C: what a channel moves at a time
  std::int32_t threads = 0;      ///< NT: of a channel
  Algorithm algorithm = Algorithm::automatic;
  Protocol protocol = Protocol::automatic;
  Transport transport = Transport::automatic;

  auto operator<=>(const CollectiveConfig&) const = default;
};

/// "4 channels, 512.0 KiB, ring, simple"; "default" where all is left to the library.
std::string describe(const CollectiveConfig& config);

}  // namespace shingle
