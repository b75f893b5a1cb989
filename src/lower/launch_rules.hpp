// Rules for launches on a GPU: which steps form one kernel, and which launches may start early.
#pragma once

#include "grid/split.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// True if a step awaits or notifies a count of arrivals. Such notifies begin a delivery, such awaits end it.
bool counts_arrivals(const Plan& plan, const Step& step);
/// True if the step behind steps [first, last) of a lane, which begin a delivery, belongs to it too.
bool belongs(const Plan& plan, const Lane& lane, std::size_t first, std::size_t last);

/// True if the launch of a step may start before the previous kernel of its stream ends (programmatic
/// dependent launch, PDL). The step must then wait for that kernel's end before its first store or notify,
/// and before it reads parts of a sum.
///
/// A GEMM may start early if it has no gates but those of parts, multiplies only inputs of its own rank, and
/// follows only awaits and notifies.
///
/// A pass may start early if it has gates, shares a work queue, and follows a GEMM that has tiles and no
/// gates. The pass's gates then cover all that it reads, and the GEMM's tiles show that the epoch has begun.
bool may_start_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step);

/// Workers that a product takes at most, of `capacity`. One that waits for other kernels while it runs, at
/// gates or because it started `early`, leaves one worker to them: sync kernels find no room beside its CTAs.
/// Gates of parts are opened by products of peers, which await nothing of this rank but its begin.
std::int32_t most_workers(const Gemm& step, std::int32_t capacity, bool early);

/// Tiles that start together, as a kernel of clusters takes them: pairs along m, if the order keeps them.
std::int32_t tiles_of_cluster(const TileGrid& grid);

/// How kernels of these tiles can cut K; `cols`: of B. Kernels of low and of narrow tiles compute two tiles
/// at a time (ping-pong), so that all their works are equally deep.
KSplit k_split(std::int32_t tile_rows, std::int32_t cols);
/// As above, for the kernel of a product. Counted rows have no split-K. With sums in the epilogue, tiles that
/// await parts of other ranks come last, and would hold up the parts of tiles behind them.
KSplit k_split(const Gemm& step);

/// Most rows of a GEMM that loads B early: with more, cuBLASLt's kernels are as fast, which do not.
inline constexpr std::int64_t most_early_rows = 128;
/// True if a GEMM may load B before the kernels ahead of it in the stream have ended, also those of earlier
/// calls. All else must wait for them. It must have a delivery ahead or behind, few rows, no gates, and a B
/// that is an input of its own rank. The backend checks that no earlier call writes B.
bool weights_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step);

/// End of the delivery behind a GEMM whose sends the GEMM may do itself, as tiles are complete; 0: none. The
/// product then goes nowhere else: the GEMM stores the rank's own rows into the rank's own slot, which is
/// free. So nothing but the delivery may read the product. That the delivery begins after these sends does
/// not matter, because its begin orders nothing in this epoch.
std::size_t sends_until(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step);

/// True if a lane only moves rows, awaits and notifies, while another lane of its rank attends. cuDNN's
/// attention takes all SMs that get free. A pass beside it would come only behind all CTAs of the attention,
/// unless its stream has a higher priority.
bool is_urgent(const RankPlan& rank, const Lane& lane);

/// True if a pass and the next step of its lane become one kernel. Both must only move rows, with the same
/// tiles and gates, into the same buffer. They must not read that buffer.
bool fuse(const Plan& plan, const Elementwise& step, const Elementwise& next);

}  // namespace shingle
