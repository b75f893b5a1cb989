// The parts of the planner `fused`, one an operator family (docs/fused.md).
#pragma once

#include "peers.hpp"

namespace shingle::planner {

/// gemm+reducescatter and gemm+allreduce: tiles go straight to the staging of who sums them.
void fuse_reduction(Builder& build, const Machine& machine);
/// allgather+gemm: tiles wait for the part of the shard that they need.
void fuse_gather(Builder& build, const Machine& machine);
/// mlp: the two above, one after the other, without anything between.
void fuse_mlp(Builder& build, const Machine& machine);
/// gemm+alltoall: rows go straight to where the routing wants them.
void fuse_scatter(Builder& build, const Machine& machine);

/// alltoall+gemm: rows are pushed to where the routing wants them; tiles wait for those that they need.
void fuse_dispatch(Builder& build, const Machine& machine);

}  // namespace shingle::planner
