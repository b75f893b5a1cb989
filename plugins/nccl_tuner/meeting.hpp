// The ranks of a communicator, as they meet when it is made.
#pragma once

#include <cstdint>
#include <string>

#include "agreement.hpp"

namespace shingle::nccl_tuner {

/// What a rank brings along; choices count only where all have the same.
struct Credentials {
  std::uint64_t table = 0;         ///< hash of the choices it knows; 0: none
  std::uint64_t communicator = 0;  ///< how manieth of its process
  std::uint64_t learn = 0;         ///< whether it is to tune
};

enum Difference : std::uint32_t { tables = 1, communicators = 2, modes = 4 };

/// In what two ranks differ: of Difference.
constexpr std::uint32_t differences(const Credentials& a, const Credentials& b) {
  return (a.table != b.table ? tables : 0u) | (a.communicator != b.communicator ? communicators : 0u) |
         (a.learn != b.learn ? modes : 0u);
}

class Meeting {
 public:
  virtual ~Meeting() = default;

  /// Waits until all ranks have come, or the deadline is over. All get the same answer.
  virtual bool complete() = 0;
  /// What is known of why it is not complete: "; …", or nothing.
  virtual std::string trouble() const { return {}; }
  /// In what any two of the ranks differ; only where complete.
  virtual std::uint32_t differences() const = 0;
  /// One rank does.
  virtual bool leads() const = 0;
  virtual Agreement& agreement() = 0;
};

}  // namespace shingle::nccl_tuner
