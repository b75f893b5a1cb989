// SHA-256 (FIPS 180-4) and HMAC (RFC 2104). Processes use them to prove that they know a token without
// sending it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shingle::net {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view bytes);
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Constant-time comparison, so that timing does not show how much of a guess was right.
bool equal(std::string_view a, std::string_view b);

inline std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace shingle::net
