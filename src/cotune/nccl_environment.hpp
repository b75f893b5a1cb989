// What a tuner plugin cannot set, as variables of the environment: NCCL 2.28.9 reads chunk sizes and numbers
// of threads once a process, and how many channels there are once a communicator.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tuned_table.hpp"

namespace shingle {

struct NcclVariable {
  std::string name;
  std::string value;
  std::string why;  ///< what needs it

  bool operator==(const NcclVariable&) const = default;
};

/// Limits for the ncclConfig_t of one communicator.
struct CommunicatorLimits {
  int communicator = 0;  ///< as in TunedKey
  int ranks = 0;
  int min_ctas = 0, max_ctas = 0;
  std::vector<NcclCollective> collectives;  ///< that it serves

  bool operator==(const CommunicatorLimits&) const = default;
};

struct NcclEnvironment {
  std::vector<NcclVariable> variables;
  /// Of communicators that the table tells apart. Where one is not listed, NCCL's own limits do.
  std::vector<CommunicatorLimits> communicators;
  /// Entries that do not get what they want, as a process has one value for all of them.
  std::vector<std::string> conflicts;
};

/// The variables that the configurations of `table` need. Where entries disagree, that of the largest size
/// gets its value.
NcclEnvironment nccl_environment(const TunedTable& table);

/// Lines for a shell to evaluate; limits, reasons and conflicts are comments.
std::string shell_text(const NcclEnvironment& environment);

}  // namespace shingle
