// Parts of the planner `fused`, one for each operator family (docs/mechanisms/fused.md).
#pragma once

#include "planner/common/handshake.hpp"
#include "planner/common/helpers.hpp"
#include "shard_tiles.hpp"

namespace shingle::planner {

class FusedBuilder : public ParamBuilder<FusedParams> {
 public:
  using ParamBuilder::ParamBuilder;
  /// Number of workers beside the GEMM.
  std::int32_t helpers() const { return larger(params().helpers, 0); }
};

/// gemm+reducescatter and gemm+allreduce: tiles are stored directly to the staging buffer of the rank that
/// sums them. `ends_with_own`: the last wave of tiles belongs to the rank itself.
void fuse_reduction(FusedBuilder& build, const Machine& machine, bool ends_with_own);
/// allgather+gemm: a tile awaits the part of the shard that it needs.
void fuse_gather(FusedBuilder& build, const Machine& machine);
/// mlp: fused gather and fused reduction, with no barrier between them.
void fuse_mlp(FusedBuilder& build, const Machine& machine);
/// gemm+alltoall: rows are stored directly where the routing sends them.
void fuse_scatter(FusedBuilder& build, const Machine& machine);

/// alltoall+gemm: rows are pushed where the routing sends them; a tile awaits the rows that it needs.
void fuse_dispatch(FusedBuilder& build, const Machine& machine);

/// alltoall+grouped-gemm, grouped-gemm+alltoall and moe: a tile awaits the tokens that it needs, products are
/// stored where their tokens are.
void fuse_experts(FusedBuilder& build, const Machine& machine);
/// allgather+grouped-gemm, grouped-gemm+reducescatter and moe-tp: tokens are gathered and sums are stored
/// with their owners, rank by rank, beside the products.
void fuse_sliced_experts(FusedBuilder& build, const Machine& machine);
/// The same with merged slots: all tokens are gathered before the product, and all sums are stored behind it.
void fuse_merged_experts(FusedBuilder& build, const Machine& machine);

/// grouped-gemm+allreduce and moe+allreduce: sums are stored with the ranks that add them, strip by strip.
void fuse_replicated_tokens(FusedBuilder& build, const Machine& machine);

/// True if tokens go to the ranks of their experts.
inline bool dispatches_tokens(const Problem& problem) {
  return problem.traits().grouped && problem.traits().before == CollectiveKind::alltoall;
}
/// True if ranks may send what is summed to all ranks.
inline bool sums_on_all(const Problem& problem) {
  return problem.op == Op::gemm_allreduce || problem.traits().replicates_tokens();
}
/// Rows of the largest shard; or most tokens that a rank sends to another.
std::int64_t most_moved_rows(const Problem& problem);

}  // namespace shingle::planner
