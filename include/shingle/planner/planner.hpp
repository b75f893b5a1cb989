// Planners: Problem or Workload × Machine × Params → Plan. They are pure functions; each mechanism has a
// folder in src/planner/.
#pragma once

#include "shingle/base/result.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"
#include "shingle/planner/params.hpp"

namespace shingle {

/// One GEMM, then the collective, or the reverse: the baseline of every speed-up.
Result<Plan> plan_sequential(const Problem& problem, const Machine& machine,
                             const SequentialParams& params = {});
/// Computations and collectives of a workload one after the other.
Result<Plan> plan_sequential(const Workload& workload, const Machine& machine,
                             const SequentialParams& params = {});

/// Data slicing: the rows are cut into `chunks` slices, each with its own GEMM and collective. The
/// communication of one slice runs beside the GEMM of the next.
Result<Plan> plan_chunked(const Problem& problem, const Machine& machine, const ChunkedParams& params = {});
/// Collectives of a workload beside its computations, each whole. An item awaits only what the lists name.
Result<Plan> plan_chunked(const Workload& workload, const Machine& machine, const ChunkedParams& params = {});

/// FlashOverlap (arXiv 2504.19519): one GEMM counts its finished tiles by groups of waves. A group is sent as
/// soon as it is complete, from a buffer in execution order; a later pass restores the order.
Result<Plan> plan_signal(const Problem& problem, const Machine& machine, const SignalParams& params = {});

/// FLUX (arXiv 2406.06858): tiles are stored directly into the memory of the rank that needs them, or wait
/// for rows from other ranks. Reductions are in rank order, beside the GEMM and after it.
Result<Plan> plan_fused(const Problem& problem, const Machine& machine, const FusedParams& params = {});

/// Flash-Overlap (arXiv 2604.24013): messages around a ring, one slice of a shard each. A rank computes its
/// own shard last before a reduce-scatter, and first after an all-gather. Neither the last slice computed nor
/// the first one needed then waits for a message.
Result<Plan> plan_ring(const Problem& problem, const Machine& machine, const RingParams& params = {});

/// DMA collectives (Pati et al., AMD): copy engines move the bytes of a collective, alone or next to a GEMM.
/// The variants are parallel copies, broadcasts to two ranks, in-place exchanges, back-to-back copies of one
/// engine, and a ring. Engines are launched when the data is ready, or ahead of time. Workers only sum.
Result<Plan> plan_copy_engine(const Problem& problem, const Machine& machine,
                              const CopyEngineParams& params = {});

/// All-reduce, reduce-scatter or all-gather of few rows, for latency: ranks store rows into each other's
/// flagged memory, where each word tells that it has arrived, and one kernel sums them, adds the residual and
/// normalises. No rank waits for another to begin.
Result<Plan> plan_low_latency(const Problem& problem, const Machine& machine,
                              const LowLatencyParams& params = {});

/// The plan of the mechanism that takes these params.
Result<Plan> plan_with(const Problem& problem, const Machine& machine, const Params& params);
/// Only `sequential` and `chunked` plan workloads; the others give a reason.
Result<Plan> plan_with(const Workload& workload, const Machine& machine, const Params& params);

}  // namespace shingle
