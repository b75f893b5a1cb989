// Settings of one collective: what a tuner may choose for it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace shingle {

enum class Algorithm : std::uint8_t { automatic, tree, ring, pat };
enum class Protocol : std::uint8_t { automatic, ll, ll128, simple };
/// `engines`: no collective of NCCL, but commands of copy engines. Workers only sum.
enum class Transport : std::uint8_t { automatic, p2p, shm, net, engines };
/// "auto", "tree", …
std::string_view name(Algorithm algorithm);
std::string_view name(Protocol protocol);
std::string_view name(Transport transport);
/// Inverse of name(). Throw InvalidArgument on an unknown name.
Algorithm parse_algorithm(std::string_view text);
Protocol parse_protocol(std::string_view text);
Transport parse_transport(std::string_view text);

/// Zero or `automatic` leaves a setting to NCCL; {} is NCCL's default in everything.
struct CollectiveConfig {
  std::int32_t channels = 0;     ///< NC: thread blocks; each occupies an SM. By engines: workers that sum
  std::int64_t chunk_bytes = 0;  ///< C: bytes that a channel moves at a time. By engines: of a rank's part
                                 ///< for another, summed while the next come; 0: the whole part
  std::int32_t threads = 0;      ///< NT: threads of a channel
  Algorithm algorithm = Algorithm::automatic;
  Protocol protocol = Protocol::automatic;
  Transport transport = Transport::automatic;
  // Of a planned overlap only: what the computations beside the collective do for it.
  std::int32_t spared = 0;  ///< workers of a rank that they leave idle
  std::int32_t delay = 0;   ///< so many of them end before the collective begins

  bool by_engines() const { return transport == Transport::engines; }
  auto operator<=>(const CollectiveConfig&) const = default;
};

/// "4 channels, 512.0 KiB, ring, simple". "default" if every setting is left to NCCL.
std::string describe(const CollectiveConfig& config);

}  // namespace shingle
