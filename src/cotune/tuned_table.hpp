// The tuned table for NCCL: a configuration for each kind and size of collective, as JSON. The tuner plugin
// reads and writes it.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/collective_config.hpp"

namespace shingle {

inline constexpr int tuned_table_version = 1;

/// Collectives for which NCCL calls a tuner, with NCCL's numbers. NCCL calls no tuner for all-to-all, sends
/// and receives, symmetric kernels and copy engines.
enum class NcclCollective : std::uint8_t { broadcast, reduce, allgather, reducescatter, allreduce };
inline constexpr int nccl_collectives = 5;
std::string_view name(NcclCollective collective);
/// Throws InvalidArgument.
NcclCollective parse_nccl_collective(std::string_view text);

/// Sizes from 2^k to just below 2^(k+1) bytes are of class k. The bytes are those that NCCL passes to a
/// tuner: the size of the larger of a rank's two buffers.
constexpr int size_class(std::uint64_t bytes) {
  int k = 0;
  while (bytes >>= 1) ++k;
  return k;
}
inline constexpr int size_classes = 64;

/// Chunk sizes that a table may hold, beside 0.
inline constexpr std::int64_t least_chunk_bytes = 4096, most_chunk_bytes = std::int64_t{1} << 30;

/// The calls that a configuration applies to.
struct TunedKey {
  NcclCollective collective = NcclCollective::allreduce;
  int size_class = 0;
  int ranks = 0;  ///< size of the communicator
  int nodes = 1;  ///< number of nodes that the communicator spans
  /// Zero-based index of the communicator in its process, if several of the same size serve different
  /// purposes. Empty: any.
  std::optional<int> communicator{};

  auto operator<=>(const TunedKey&) const = default;
};

struct TunedEntry {
  TunedKey key;
  CollectiveConfig config;
  double iteration_us = 0;  ///< time of the program in which it was tuned; 0: unknown
  double default_us = 0;    ///< the same with NCCL's own choice; 0: unknown

  bool operator==(const TunedEntry&) const = default;
};

struct TunedTable {
  std::vector<TunedEntry> entries;  ///< all keys differ
  std::string why{};                ///< one line: why there are no entries, or not all; may be empty

  bool operator==(const TunedTable&) const = default;
};

/// Adds an entry, or replaces the one with the same key.
void store(TunedTable& table, TunedEntry entry);

/// One line for each entry.
std::string to_json(const TunedTable& table);
/// Throws InvalidArgument: one line that names the field. Refuses two entries with the same key, an algorithm
/// without a protocol or the reverse, and values that NCCL does not accept.
TunedTable tuned_table_from_json(std::string_view text);
/// As above, from a file. Also throws IoError.
TunedTable read_tuned_table(const std::string& path);

/// "allgather of 16.0 MiB to 32.0 MiB on 8 ranks".
std::string describe(const TunedKey& key);

}  // namespace shingle
