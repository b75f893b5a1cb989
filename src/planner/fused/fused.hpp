// The parts of the planner `fused`, one an operator family (docs/mechanisms/fused.md).
#pragma once

#include "planner/common/peers.hpp"

namespace shingle::planner {

/// gemm+reducescatter and gemm+allreduce: tiles go straight to the staging of who sums them. `ends_with_own`:
/// the last wave of tiles is the rank's own.
void fuse_reduction(Builder& build, const Machine& machine, bool ends_with_own);
/// allgather+gemm: tiles wait for the part of the shard that they need.
void fuse_gather(Builder& build, const Machine& machine);
/// mlp: the two above, one after the other, without anything between.
void fuse_mlp(Builder& build, const Machine& machine);
/// gemm+alltoall: rows go straight to where the routing wants them.
void fuse_scatter(Builder& build, const Machine& machine);

/// alltoall+gemm: rows are pushed to where the routing wants them; tiles wait for those that they need.
void fuse_dispatch(Builder& build, const Machine& machine);

/// A gated pass by some workers in a lane beside the GEMM and by `rest` after it, who share its items. The
/// former come when there is something to do: before, they would be in the way of a GEMM that takes its
/// workers all at once.
void share(Builder& build, int rank, Elementwise pass, std::int32_t lane, std::int32_t some,
           std::int32_t rest);

}  // namespace shingle::planner
