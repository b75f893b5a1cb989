// How the ranks of a communicator meet when it is made.
#pragma once

#include <cstdint>
#include <string>

#include "agreement.hpp"

namespace shingle::nccl_tuner {

/// What a rank brings to the meeting. Choices count only if all ranks have the same.
struct Credentials {
  std::uint64_t table = 0;         ///< hash of the rank's tuned table; 0: none
  std::uint64_t communicator = 0;  ///< zero-based index of the communicator in its process
  std::uint64_t learn = 0;         ///< whether the plugin is to tune
};

enum Difference : std::uint32_t { tables = 1, communicators = 2, modes = 4 };

/// Bit set of Difference between two ranks.
constexpr std::uint32_t differences(const Credentials& a, const Credentials& b) {
  return (a.table != b.table ? tables : 0u) | (a.communicator != b.communicator ? communicators : 0u) |
         (a.learn != b.learn ? modes : 0u);
}

class Meeting {
 public:
  virtual ~Meeting() = default;

  /// Waits until all ranks have come or the deadline has passed. All ranks get the same answer.
  virtual bool complete() = 0;
  /// Why it is not complete, as far as known: "; …", or empty.
  virtual std::string trouble() const { return {}; }
  /// Bit set of differences between any two ranks. Only if complete.
  virtual std::uint32_t differences() const = 0;
  /// True on exactly one rank.
  virtual bool leads() const = 0;
  virtual Agreement& agreement() = 0;
};

}  // namespace shingle::nccl_tuner
