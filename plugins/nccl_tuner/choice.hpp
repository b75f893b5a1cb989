// The configuration that NCCL is given for a call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cotune/tuned_table.hpp"

namespace shingle::nccl_tuner {

/// In NCCL's numbers. With nothing set: NCCL's own choice. Trivial, because it lies in memory that processes
/// share.
struct Choice {
  std::int8_t algorithm = -1, protocol = -1;  ///< both set or neither
  std::uint8_t channels = 0;
  std::uint32_t chunk_bytes = 0;  ///< takes effect from version 6 of NCCL's interface

  bool empty() const { return algorithm < 0 && channels == 0 && chunk_bytes == 0; }
  bool operator==(const Choice&) const = default;
};

/// The part of a config that a tuner can set. Threads and transport are not among it.
Choice choice_of(const CollectiveConfig& config);

/// The kind of a call.
struct CallKind {
  std::uint8_t collective = 0, size_class = 0;

  bool operator==(const CallKind&) const = default;
};

/// The choice for a kind of call, from a given call on.
struct Change {
  CallKind kind;
  Choice choice;

  bool operator==(const Change&) const = default;
};

/// NCCL's cost table for one call: algorithms × protocols, row-major.
struct CostTable {
  float* costs = nullptr;
  int algorithms = 0, protocols = 0;

  /// Null if the table has no such row or column.
  float* find(const Choice& choice) const {
    if (choice.algorithm < 0 || choice.algorithm >= algorithms) return nullptr;
    if (choice.protocol < 0 || choice.protocol >= protocols) return nullptr;
    return costs + choice.algorithm * protocols + choice.protocol;
  }
};

/// True if the values are in range. Check data from other processes with it before use.
bool valid(CallKind kind);
bool valid(const Choice& choice);
inline bool valid(const Change& change) {
  return valid(change.kind) && valid(change.choice);
}

/// True if NCCL can run the call with this choice.
bool available(const Choice& choice, const CostTable& table);

/// Makes NCCL take the choice, except for its chunk size. Returns false and changes nothing if it is not
/// available.
bool apply(const Choice& choice, const CostTable& table, int* channels);

/// The choices of one communicator, by kind of call. Throws std::out_of_range for an invalid kind.
class Choices {
 public:
  Choice& at(CallKind kind) { return all_.at(index(kind)); }
  const Choice& at(CallKind kind) const { return all_.at(index(kind)); }

 private:
  static std::size_t index(CallKind kind) {
    return valid(kind) ? std::size_t{kind.collective} * size_classes + kind.size_class : none;
  }
  static constexpr std::size_t none = std::size_t{nccl_collectives} * size_classes;
  std::array<Choice, none> all_{};
};

}  // namespace shingle::nccl_tuner
