// Where the internal buffers of a plan lie in an arena.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The same on all ranks, so that a rank computes addresses in its peers' arenas.
struct ArenaLayout {
  std::vector<std::int64_t> offset_bytes;  ///< by buffer; -1: a user buffer or a flagged one
  std::int64_t bytes = 0;                  ///< of the arena that the plan needs on each rank
};
ArenaLayout arena_layout(const Plan& plan);

}  // namespace shingle
