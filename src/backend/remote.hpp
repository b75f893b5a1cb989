// Which plans need a rank to reach another's memory.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The first step that accesses another rank's memory or counters, and how: "rank 0, lane compute, step 2
/// (push) stores into rank 1"; or an empty string.
std::string remote_access(const Plan& plan);

}  // namespace shingle
