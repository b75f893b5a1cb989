// Which steps a backend may begin before those in front of them in their lane have ended. The simulator
// counts them alike.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Whether a step of a rank's lane need not wait for what is in front of it to begin, but only to store and
/// count: a GEMM of the rank's own inputs, which no step stores to, behind nothing but waits and counts, as
/// what they wait for are those who get its output. Or not at all: a gated pass whose items another lane may
/// take as well, as its gates then say all, behind a GEMM, which has to have tiles, since the pass knows by
/// them that the epoch has begun, and no gates, as the pass takes the place of what opens them.
bool begins_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step);

}  // namespace shingle
