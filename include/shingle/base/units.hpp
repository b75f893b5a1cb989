// Sizes, rates and times in the notation that people type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shingle {

/// Parses a count or a number of bytes: "128M" → 128·2^20, "8K", "4G", "512". Suffixes K, M, G, T are binary;
/// "B" or "iB" may follow them. Throws InvalidArgument on any other text, on a negative value and on overflow
/// of 2^62.
std::int64_t parse_size(std::string_view text);

/// The parts of `text` between separators: "1,2," → "1", "2", "".
std::vector<std::string> split(std::string_view text, char separator);

/// Connection of one rank to the others: rate and latency.
struct Link {
  double gbps = 0;        ///< 1e9 bytes/s in each direction; 0: unpaced, as fast as memory
  double latency_us = 0;  ///< per transfer

  bool paced() const { return gbps > 0 || latency_us > 0; }
  /// Time to transfer `bytes` over this link, in microseconds.
  double transfer_us(double bytes) const { return latency_us + (gbps > 0 ? bytes / (gbps * 1e3) : 0); }
  bool operator==(const Link&) const = default;
};

/// Parses "8GB/s,10us" → {8, 10}. Rate and latency may each stand alone. "400Gb/s" is in bits; "none" is
/// unpaced. Throws InvalidArgument.
Link parse_link(std::string_view text);

/// Parses "30s", "250ms", "10us" or "2m" (minutes) to microseconds. Throws InvalidArgument.
double parse_time_us(std::string_view text);

/// "1.5 MiB"; "412 us", "3.2 ms".
std::string format_bytes(double bytes);
std::string format_us(double us);

}  // namespace shingle
