// Plans for people.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The plan of one rank, a line a step, after a head with problem, params, buffers, counters and rounding.
/// Ranks whose plan differs only in rank numbers are not repeated; rank < 0 prints rank 0 and says what
/// differs. Throws InvalidArgument for a rank beyond the world.
std::string to_text(const Plan& plan, int rank = -1);

/// One step on one line: "gemm 2048x4096 in 64 tiles of 256x512, notifies done[g]".
std::string describe(const Plan& plan, const Step& step);

/// "rank 1, lane compute, step 0 (gemm)".
std::string where(const Plan& plan, int rank, int lane, int step);

}  // namespace shingle
