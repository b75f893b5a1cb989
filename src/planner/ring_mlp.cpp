// mlp around the ring: Flash-AG before the first product, Flash-RS after the second, and no barrier between.
//
// An all-gather wants a rank's own shard first, which needs no message; a reduce-scatter wants it last, after
// which no message follows. On one ring both orders are the same cycle: rank r gets the shards r - 1, r - 2,
// …, r + 1 in this order, and their sums are wanted on the way in just this order. So it multiplies its own
// shard by B first, every other shard by both weights as it comes, and its own by the second weight last.
#include "mlp.hpp"
#include "ring.hpp"

namespace shingle::planner {
namespace {

class RingMlp {
 public:
  RingMlp(Builder& build, const Shards& shards)
      : build_(build),
        shards_(shards),
        shard_(build.problem().shard_rows()),
        sums_(make_sums(build, shards, shard_)),
        kept_(build.buffer("kept", shard_, build.problem().inner)) {
    const std::int64_t others = build.world() - 1;
    if (others == 0) return;
    hidden_ = hidden_buffer(build, shards.longest());
    gathered_ = build.buffer("gathered", others * shard_, build.problem().k);
    arrived_ = build.counter("arrived", others * shards.slices());
  }

  void plan(int rank) {
    std::vector<std::int64_t> rows;
    for (std::int64_t s = 0; s < shards_.slices(); ++s) rows.push_back(shards_.begin(s));
    Reducer reducer(build_, shards_, sums_, rank, rows);
    reducer.before_products([&](int shard, std::int64_t s, Gemm& product) {
      product.a = shard == rank ? kept(rank, s) : first_product(rank, shard, s);
      product.a_rows = RowMap::identity(product.a.rows);
    });
    for (std::int64_t s = 0; s < shards_.slices(); ++s) {
      gather(rank, 0, s);
      if (shards_.rows(rank, s) > 0) multiply(rank, held(rank, 0, s), kept(rank, s));
    }
    for (std::int64_t i = 0; i < build_.world(); ++i)
      for (std::int64_t s = 0; s < shards_.slices(); ++s) {
        gather(rank, i + 1, s);  // for the next step, and not behind the sums of this one
        reducer.step(i, s);
      }
  }

 private:
  /// The slice of the shard `places` behind, in the rank's memory.
  Slice held(int rank, std::int64_t places, std::int64_t s) const {
    const std::int64_t rows = shards_.rows(shards_.behind(rank, places), s);
    return places == 0 ? build_.rows(build_.a, rank, shards_.begin(s), rows)
                       : build_.rows(gathered_, rank, (places - 1) * shard_ + shards_.begin(s), rows);
  }
  /// First products of the own shard stay until the last step.
  Slice kept(int rank, std::int64_t s) const {
    return build_.rows(kept_, rank, shards_.begin(s), shards_.rows(rank, s));
  }

  /// Passes on the shard `places` behind, and gets the one behind that.
  void gather(int rank, std::int64_t places, std::int64_t s) {
    if (places + 1 >= build_.world()) return;
    const Slice own = held(rank, places, s), next = held(rank, places + 1, s);
    std::vector<Exchange::Message> sends, receives;
    if (own.rows > 0) sends.push_back({shards_.behind(rank, -1), own});
    if (next.rows > 0) receives.push_back({shards_.behind(rank, 1), next});
    if (own.rows + next.rows > 0) build_.exchange(rank, std::move(sends), std::move(receives));
    if (next.rows > 0) build_.notify(rank, communicate_lane, arrived_, places * shards_.slices() + s);
  }

  /// Of another rank's slice, once that has come. The next slice's takes its place: it is in the same lane.
  Slice first_product(int rank, int shard, std::int64_t s) {
    const std::int64_t places = (rank - shard + build_.world()) % build_.world();
    const Slice own = held(rank, places, s);
    build_.await(rank, compute_lane, arrived_, (places - 1) * shards_.slices() + s);
    const Slice to = build_.rows(hidden_, rank, 0, own.rows);
    multiply(rank, own, to);
    return to;
  }

  void multiply(int rank, const Slice& a, const Slice& to) {
    Gemm up = build_.up_gemm(rank, build_.one_tile(a.rows, build_.problem().inner), RowMap::identity(a.rows),
                             Builder::in_place(to));
    up.a = a;
    build_.step(rank, compute_lane, std::move(up));
  }

  Builder& build_;
  const Shards& shards_;
  std::int64_t shard_;
  Sums sums_;
  std::int32_t kept_;
  std::int32_t hidden_ = -1, gathered_ = -1;  // buffers; other ranks' rows
  std::int32_t arrived_ = -1;                 // counter: a slice of another rank's shard has come
};

}  // namespace

void plan_ring_mlp(Builder& build, const Shards& shards) {
  RingMlp mlp(build, shards);
  for (int r = 0; r < build.world(); ++r) mlp.plan(r);
}

}  // namespace shingle::planner
