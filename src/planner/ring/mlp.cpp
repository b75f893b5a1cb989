// mlp around the ring: Flash-AG before the first product, Flash-RS after the second, and no barrier between.
//
// An all-gather uses a rank's own shard first, because it needs no message. A reduce-scatter computes it
// last, because no message follows. On one ring both orders are the same cycle. Rank r gets shards r − 1, r −
// 2, …, r + 1 in this order, and their sums leave in this order.
//
// So a rank multiplies its own shard by B first. It multiplies every other shard by both weights as it
// arrives. It multiplies its own by the second weight last.
#include "planner/common/mlp.hpp"
#include "ring.hpp"

namespace shingle::planner {
namespace {

class RingMlp {
 public:
  RingMlp(RingBuilder& build, const Shards& shards)
      : build_(build),
        shards_(shards),
        sums_(make_sums(build, shards, build.problem().shard_rows())),
        kept_(build.buffer("kept", build.problem().shard_rows(), build.problem().inner)),
        hidden_(build.world() > 1 ? hidden_buffer(build, shards.longest()) : -1),
        gather_(build, shards) {}

  void plan(int rank) {
    std::vector<std::int64_t> rows;
    for (std::int64_t s = 0; s < shards_.slices(); ++s) rows.push_back(shards_.begin(s));
    Reducer reducer(build_, shards_, sums_, rank, rows);
    reducer.before_products([&](int shard, std::int64_t s, Gemm& product) {
      product.a = shard == rank ? kept(rank, s) : first_product(rank, shard, s);
      product.a_rows = RowMap::identity(product.a.rows);
    });
    for (std::int64_t s = 0; s < shards_.slices(); ++s) {
      gather_.pass_on(rank, 0, s);
      if (shards_.rows(rank, s) > 0) multiply(rank, gather_.held(rank, 0, s), kept(rank, s));
    }
    for (std::int64_t i = 0; i < build_.world(); ++i)
      for (std::int64_t s = 0; s < shards_.slices(); ++s) {
        gather_.pass_on(rank, i + 1, s);  // for the next step; it must not wait behind the sums of this step
        reducer.step(i, s);
      }
  }

 private:
  /// First products of the own shard are kept until the last step.
  Slice kept(int rank, std::int64_t s) const {
    return build_.rows(kept_, rank, shards_.begin(s), shards_.rows(rank, s));
  }

  /// First product of another rank's slice, after the slice has arrived. All slices share one buffer, because
  /// they are in the same lane.
  Slice first_product(int rank, int shard, std::int64_t s) {
    const std::int64_t places = (rank - shard + build_.world()) % build_.world();
    const Slice slice = gather_.held(rank, places, s);
    gather_.await(rank, places, s);
    const Slice to = build_.rows(hidden_, rank, 0, slice.rows);
    multiply(rank, slice, to);
    return to;
  }

  void multiply(int rank, const Slice& a, const Slice& to) {
    Gemm up = build_.up_gemm(rank, build_.one_tile(a.rows, build_.problem().inner), RowMap::identity(a.rows),
                             Builder::in_place(to));
    up.a = a;
    build_.step(rank, compute_lane, std::move(up));
  }

  RingBuilder& build_;
  const Shards& shards_;
  Sums sums_;
  std::int32_t kept_, hidden_;  // buffers: first products of the own shard, and of a slice of another shard
  RingGather gather_;
};

}  // namespace

void plan_ring_mlp(RingBuilder& build, const Shards& shards) {
  RingMlp mlp(build, shards);
  for (int r = 0; r < build.ranks(); ++r) mlp.plan(r);
}

}  // namespace shingle::planner
