// Which plans need a rank to access another rank's memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Describes the first step that accesses another rank's memory or counters, or returns an empty string.
/// Example: "rank 0, lane compute, step 2 (push) stores into rank 1".
std::string remote_access(const Plan& plan);

/// Indices of user buffers that ranks other than the owner access.
std::vector<std::int32_t> remote_user_buffers(const Plan& plan);

}  // namespace shingle
