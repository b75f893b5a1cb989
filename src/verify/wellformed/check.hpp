// Shared by the checks of well-formedness: bounds, and a failure that names its place.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "shingle/plan/plan.hpp"

namespace shingle::wellformed {

// Bounds under which no sum or product of the checks, the verifier or an executor overflows.
inline constexpr std::int64_t max_runs = std::int64_t{1} << 20;  ///< of a block of a row map
inline constexpr std::int64_t max_rows = std::int64_t{1}
                                         << 40;  ///< of a row map; check_grid bounds those of a grid
inline constexpr std::int64_t max_positions = std::int64_t{1} << 31;  ///< of a grid
inline constexpr std::int64_t max_bytes = std::int64_t{1} << 60;      ///< of all buffers on all ranks
inline constexpr std::uint32_t max_count = 1u
                                           << 28;  ///< of a counter in one epoch: several epochs fit 31 bits
inline constexpr std::int32_t max_workers = 1 << 20;
inline constexpr std::size_t max_lanes = 256;
inline constexpr std::int32_t max_queues = 1024;
inline constexpr std::size_t max_groups = std::size_t{1} << 20;  ///< of a grouped product
inline constexpr std::int32_t max_group_tiles = 4096;

/// Thrown at the first defect. malformed() catches it.
struct Flaw {
  std::string text;
};

template <class... Args>
void require(bool ok, const std::string& where, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) throw Flaw{where + ": " + fmt::format(message, std::forward<Args>(args)...)};
}

/// Requires a valid index into one of the plan's tables.
template <class Table>
void require_index(std::int64_t index, const Table& table, const std::string& where, const char* what) {
  require(index >= 0 && index < static_cast<std::int64_t>(table.size()), where,
          "{} is none of the plan's {} {}", index, table.size(), what);
}

/// Checks one step by itself. All of the plan except its steps has been checked.
void check_step(const Plan& plan, int rank, int lane, int step);
/// Requires that all steps of a work queue are one pass, apart from their workers, in different lanes.
void check_queues(const Plan& plan, int rank);

}  // namespace shingle::wellformed
