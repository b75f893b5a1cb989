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

/// FLUX (arXiv 2406.06858): tiles are stored straight into the memory of the rank that needs them, or wait
/// for their rows to come from other ranks; reductions are in rank order, beside the GEMM and after it.
Result<Plan> plan_fused(const Problem& problem, const Machine& machine, const Params& params = {});

/// Flash-Overlap (arXiv 2604.24013): messages around a ring, one slice of a shard each. A rank computes its
/// own shard last before a reduce-scatter and first after an all-gather, so that neither the last slice
/// computed nor the first one needed waits for a message.
Result<Plan> plan_ring(const Problem& problem, const Machine& machine, const Params& params = {});

/// DMA collectives (Pati et al., AMD): copy engines move the bytes of a collective, or of the one before or
/// after a GEMM, in parallel copies, broadcasts to two ranks, exchanges in place, back-to-back copies of one
/// engine or around a ring; launched when ready or ahead of time. Workers only sum.
Result<Plan> plan_copy_engine(const Problem& problem, const Machine& machine, const Params& params = {});

/// A Planner by name; the same signature for all.
using Planner = Result<Plan> (*)(const Problem&, const Machine&, const Params&);

}  // namespace shingle
