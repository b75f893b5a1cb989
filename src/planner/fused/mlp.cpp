// mlp in two GEMMs that are not split: tiles of the first wait for their rows, as in allgather+gemm; those of
// the second go straight to their owners, as in gemm+reducescatter.
//
// The first product stays on its rank. It begins with the own shard, which need not come from anywhere, and
// goes on with those of r + 1, r + 2, … as they come; the second goes over them in the same cycle from r + 1
// on and ends with the own one, which goes nowhere. It follows the first in the lane instead of being gated
// on it in another: a gated GEMM holds the workers that it has while it waits, which the first one can use.
#include "planner/common/mlp.hpp"
#include "gather.hpp"
#include "reduction.hpp"

namespace shingle::planner {

void fuse_mlp(Builder& build, const Machine& machine) {
  const Problem& p = build.problem();
  const ShardTiles first = gathered_tiles(build, p.inner, machine);
  const ShardTiles second(p.world, p.m, p.n, machine, build.params(), ShardTiles::Bands::of_any);
  const Gather gather(build, first, machine);
  const ShardSums sums(build, second);
  const std::int32_t hidden = hidden_buffer(build, p.m);
  const Handshake handshake(build);
  for (int r = 0; r < p.world; ++r) {
    const Slice product = build.all(hidden, r);
    gather.move(handshake, r);
    Gemm up = build.up_gemm(r, first.grid(r), first.rows(), Builder::in_place(product));
    gather.feed(r, up);
    build.step(r, compute_lane, std::move(up));
    // Whose rows have come has begun; of the others nothing is known yet.
    for (int peer = 0; peer < p.world; ++peer)
      if (peer != r && first.rows_of(peer) == 0) handshake.await(build, r, compute_lane, peer);
    sums.multiply(r, &product);
    sums.sum(r);
  }
}

}  // namespace shingle::planner
