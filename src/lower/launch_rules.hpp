// Which steps a GPU carries out as one launch, and which launches may start before the previous kernel ends.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Returns true if the launch of a step may start before the previous kernel of its stream ends (programmatic
/// dependent launch). It must then wait for that kernel's end before its first store or notify.
/// A GEMM may if it has no gates, reads only inputs of its own rank, and follows nothing but awaits and
/// notifies. A pass may if it has gates, shares a work queue and follows a GEMM that has tiles and no gates.
/// Its gates then cover all that it reads, and the GEMM's tiles show that the epoch has begun.
bool may_start_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step);

/// Returns true if a pass and the next step of its lane are one kernel. Both must only move rows, over the
/// same tiles and gates and into the same buffer, and read buffers that neither stores to.
bool fuse(const Plan& plan, const Elementwise& step, const Elementwise& next);

}  // namespace shingle
