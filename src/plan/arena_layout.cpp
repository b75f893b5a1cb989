#include "arena_layout.hpp"

#include <algorithm>

namespace shingle {

ArenaLayout arena_layout(const Plan& plan) {
  constexpr std::int64_t alignment = 1024;  // bytes: more than any load or store requires
  ArenaLayout layout;
  for (const Buffer& buffer : plan.buffers) {
    const bool shared = buffer.role == Role::internal && !buffer.flagged;
    layout.offset_bytes.push_back(shared ? layout.bytes : -1);
    if (!shared) continue;
    std::int64_t most = 0;
    for (std::size_t rank = 0; rank < buffer.rows.size(); ++rank)
      most = std::max(most, buffer.bytes(static_cast<int>(rank)));
    layout.bytes += ceil_div(most, alignment) * alignment;
  }
  return layout;
}

}  // namespace shingle
