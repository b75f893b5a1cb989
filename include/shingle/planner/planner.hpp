// Planners: Problem × Machine × Params → Plan. Pure functions, one file a mechanism.
#pragma once

#include "shingle/base/result.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// One GEMM, then the collective (or the other way round): what everybody has, and the baseline of every
/// speed-up.
Result<Plan> plan_sequential(const Problem& problem, const Machine& machine, const Params& params = {});

/// Data slicing: the rows in `params.chunks` slices, each a GEMM and a collective of its own; the
/// communication of one slice runs beside the GEMM of the next.
Result<Plan> plan_chunked(const Problem& problem, const Machine& machine, const Params& params = {});

/// FlashOverlap (arXiv 2504.19519): one GEMM that counts its finished tiles by groups of waves; a group is
/// sent as soon as it is complete, from a buffer in the order of execution, and put back in order afterwards.
Result<Plan> plan_signal(const Problem& problem, const Machine& machine, const Params& params = {});

/// Flash-Overlap (arXiv 2604.24013): rank r works on the rows of rank r - 1, r - 2, …, its own last; partial
/// sums travel around the ring beside the computation of the next slice.
Result<Plan> plan_ring(const Problem& problem, const Machine& machine, const Params& params = {});

/// A Planner by name; the same signature for all.
using Planner = Result<Plan> (*)(const Problem&, const Machine&, const Params&);

}  // namespace shingle
