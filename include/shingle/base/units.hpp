// Sizes, rates and times as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shingle {

/// "128M" → 128·2^20, "8K", "4G", "512": a count or bytes, with binary suffixes K, M, G, T (an optional "B"
/// or "iB" may follow). Throws InvalidArgument on anything else, on a negative value and on overflow of 2^62.
std::int64_t parse_size(std::string_view text);

/// A link: rate and latency of one rank's connection to the others.
struct Link {
  double gbps = 0;        ///< 1e9 bytes/s a direction; 0 is an unpaced link, as fast as memory
  double latency_us = 0;  ///< per transfer

  bool paced() const { return gbps > 0 || latency_us > 0; }
  /// Time that `bytes` take on this link.
  double transfer_us(double bytes) const { return latency_us + (gbps > 0 ? bytes / (gbps * 1e3) : 0); }
  bool operator==(const Link&) const = default;
};

/// "8GB/s,10us" → {8, 10}; either part alone will do; "400Gb/s" is bits; "none" is unpaced. Throws
/// InvalidArgument.
Link parse_link(std::string_view text);

/// "30s", "250ms", "10us", "2m" → microseconds. Throws InvalidArgument.
double parse_time_us(std::string_view text);

/// "1.5 MiB"; "412 us", "3.2 ms".
std::string format_bytes(double bytes);
std::string format_us(double us);

}  // namespace shingle
