// Checks whether a run fits into memory, before anything is allocated.
#pragma once

#include "shingle/common/process_launch.hpp"
#include "shingle/shingle.hpp"

namespace shingle::cli {

/// Bytes that all processes on this host may still allocate, by /proc/meminfo and by the control group's
/// limit, if any.
double available_bytes();

/// Bytes of all matrices that the user of a problem binds, for ranks of this process only. A double, so that
/// it cannot overflow.
double user_matrix_bytes(const Problem& problem, const ProcessLaunch& launch);

/// Bytes that a plan allocates, for ranks of this process only.
double internal_bytes(const Plan& plan, const ProcessLaunch& launch);

/// Throws InvalidArgument if `bytes` in each process of this host do not fit.
void require_memory(double bytes, const std::string& what, const ProcessLaunch& launch);

}  // namespace shingle::cli
