// Environment variables for settings that a tuner plugin cannot change. NCCL reads transports, numbers of
// threads and sizes of buffers once in a process, and the number of channels once for a communicator. A
// buffer bounds chunks. Before NCCL 2.30 it is also all that sets them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuned_table.hpp"

namespace shingle {

struct NcclVariable {
  std::string name;
  std::string value;
  std::string why;  ///< entry of the table that needs it

  bool operator==(const NcclVariable&) const = default;
};

/// Limits for the ncclConfig_t of one communicator.
struct CommunicatorLimits {
  int communicator = 0;  ///< as in TunedKey
  int ranks = 0;
  int min_ctas = 0, max_ctas = 0;
  std::vector<NcclCollective> collectives;  ///< collectives that it runs

  bool operator==(const CommunicatorLimits&) const = default;
};

struct NcclEnvironment {
  std::vector<NcclVariable> variables;
  /// Communicators that the table distinguishes. NCCL's own limits suffice for others.
  std::vector<CommunicatorLimits> communicators;
  /// Entries that cannot have their value, because a process has one value for all of them.
  std::vector<std::string> conflicts;
};

/// The variables that the configurations of `table` need. If entries disagree, the entry of the largest size
/// gets its value. `asks_chunks`: NCCL is 2.30 or later and asks the plugin for the chunk of each call, so
/// buffers only need to hold the largest.
NcclEnvironment nccl_environment(const TunedTable& table, bool asks_chunks = false);

/// Lines for a shell to evaluate; limits, reasons and conflicts are comments.
std::string shell_text(const NcclEnvironment& environment);

}  // namespace shingle
