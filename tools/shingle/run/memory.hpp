// Whether a run would fit into memory, asked before anything is allocated.
#pragma once

#include "shingle/common/launch.hpp"
#include "shingle/shingle.hpp"

namespace shingle::cli {

/// Bytes that all processes on this host may still take: available by /proc/meminfo, and by the control group
/// where there is one.
double available_bytes();

/// Bytes of all matrices that the user of a problem binds, ranks of this process only. As a double, which
/// does not overflow.
double user_matrix_bytes(const Problem& problem, const Launch& launch);

/// Bytes of what a plan allocates, ranks of this process only.
double internal_bytes(const Plan& plan, const Launch& launch);

/// Throws InvalidArgument where `bytes` in each process of this host would not fit.
void require_memory(double bytes, const std::string& what, const Launch& launch);

}  // namespace shingle::cli
