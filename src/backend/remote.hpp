// Which plans need a rank to reach another's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The first step that accesses another rank's memory or counters, and how: "rank 0, lane compute, step 2
/// (push) stores into rank 1"; or an empty string.
std::string remote_access(const Plan& plan);

/// The user's buffers, by index, that ranks other than the buffer's own access.
std::vector<std::int32_t> remote_user_buffers(const Plan& plan);

}  // namespace shingle
