// mlp in two unsplit GEMMs. Tiles of the first await their rows, as in allgather+gemm. Tiles of the second
// are stored directly to their owners, as in gemm+reducescatter.
//
// The first product stays on its rank r. It begins with the own shard, which needs no transfer, and continues
// with shards r + 1, r + 2, … as they arrive. The second follows the same cycle from r + 1 on. It ends with
// the own shard, which is not sent.
//
// The second GEMM follows the first in its lane. Gated on the first in another lane, it would hold workers
// while it waits that the first could use.
#include "planner/common/mlp.hpp"
#include "gather.hpp"
#include "reduction.hpp"

namespace shingle::planner {

void fuse_mlp(FusedBuilder& build, const Machine& machine) {
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
    // A rank has begun if its rows have arrived. Ranks without rows are awaited here.
    for (int peer = 0; peer < p.world; ++peer)
      if (peer != r && first.rows_of(peer) == 0) handshake.await(build, r, compute_lane, peer);
    sums.multiply(r, product);
    sums.sum(r);
  }
}

}  // namespace shingle::planner
