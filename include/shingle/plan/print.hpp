// Plans as text for people.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// The plan of one rank, one line a step. A head gives problem, params, buffers, counters and rounding. Ranks
/// whose plans differ only in rank numbers are not repeated. `rank` < 0 prints rank 0 and says what differs
/// on others. Throws InvalidArgument for a rank outside the world.
std::string to_text(const Plan& plan, int rank = -1);

/// One step on one line: "gemm 2048x4096 in 64 tiles of 256x512, notifies done[g]".
std::string describe(const Plan& plan, const Step& step);

/// "rank 1, lane compute, step 0 (gemm)".
std::string where(const Plan& plan, int rank, int lane, int step);

}  // namespace shingle
