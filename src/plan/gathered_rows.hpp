// The rows that an all-gather leaves in staging memory.
#pragma once

#include <cstdint>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The internal buffer that on every rank holds all rows of A, in their order, when an epoch of an
/// allgather+gemm ends; -1 if the plan has none. Chunks and rings gather rows in another order.
std::int32_t find_gathered_rows(const Plan& plan);

}  // namespace shingle
