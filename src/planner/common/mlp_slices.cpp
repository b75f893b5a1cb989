// mlp with collectives. Slice i of every shard is gathered, multiplied twice and reduce-scattered. The gather
// of slice i + 1 and the scatter of slice i − 1 run beside the products of slice i.
//
// A gathered slice holds the ranks' parts one after the other. Both products keep that order, which a
// reduce-scatter needs. If M leaves a short last shard, its padding follows all rows.
#include "mlp.hpp"

#include "shard.hpp"

namespace shingle::planner {
namespace {

/// Buffers and counters that all ranks of the plan have; -1: not needed.
struct Stages {
  std::int32_t gathered;  ///< buffer, by slice: gathered rows of A
  std::int32_t hidden;    ///< buffer: first product of one slice
  std::int32_t product;   ///< buffer, by slice: second product
  std::int32_t part;      ///< buffer: sums of the rank's shard
  std::int32_t arrived;   ///< counter, by slice: gathered
  std::int32_t computed;  ///< counter, by slice: in `product`
  std::int32_t received;  ///< counter, by slice: in `part`
};

class MlpSlices {
 public:
  MlpSlices(Builder& build, const std::vector<std::int64_t>& begins)
      : build_(build),
        p_(build.problem()),
        begins_(begins),
        slices_(static_cast<std::int64_t>(begins.size()) - 1),
        shard_(build, slices_),
        at_(stages()) {}

  void plan(int rank) {
    // The gather of the next slice is issued before this slice is awaited.
    gather(rank, 0);
    for (std::int64_t i = 0; i < slices_; ++i) {
      if (i + 1 < slices_) gather(rank, i + 1);
      multiply(rank, i);
      scatter(rank, i);
    }
    if (at_.received >= 0) finish(rank);
  }

 private:
  Stages stages() {
    const std::int64_t shard = p_.shard_rows();
    const bool full = p_.m == p_.world * shard;
    const bool direct = full && !build_.needs_finishing();
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < slices_; ++i) longest = larger(longest, rows_of(i));
    Stages at{};
    at.gathered = build_.buffer("gathered", p_.world * shard, p_.k);
    at.hidden = hidden_buffer(build_, p_.world * longest);
    at.product = build_.buffer("product", p_.world * shard, p_.n);
    at.part = direct ? build_.out : build_.buffer("part", shard, p_.n);
    at.arrived = build_.counter("arrived", slices_);
    at.computed = build_.counter("computed", slices_);
    at.received = direct ? -1 : build_.counter("received", slices_);
    return at;
  }

  std::int64_t first(std::int64_t slice) const { return begins_[static_cast<std::size_t>(slice)]; }
  /// Rows of a slice in a full shard.
  std::int64_t rows_of(std::int64_t slice) const { return first(slice + 1) - first(slice); }
  Slice everyones(std::int32_t buffer, int rank, std::int64_t slice) const {
    return build_.rows(buffer, rank, p_.world * first(slice), p_.world * rows_of(slice));
  }

  void gather(int rank, std::int64_t slice) {
    shard_.make(build_, rank, slice, first(slice), rows_of(slice));
    build_.collective(rank, CollectiveKind::allgather,
                      shard_.rows(build_, rank, first(slice), rows_of(slice)),
                      everyones(at_.gathered, rank, slice));
    build_.notify(rank, communicate_lane, at_.arrived, slice);
  }

  /// All slices share one buffer for first products: a lane does them in turn.
  void multiply(int rank, std::int64_t slice) {
    const std::int64_t rows = rows_in_slice(p_, first(slice), rows_of(slice));
    build_.await(rank, compute_lane, at_.arrived, slice);
    const Slice hidden = build_.rows(at_.hidden, rank, 0, rows);
    Gemm up = build_.up_gemm(rank, build_.one_tile(rows, p_.inner), RowMap::identity(rows),
                             Builder::in_place(hidden));
    up.a = everyones(at_.gathered, rank, slice);
    build_.step(rank, compute_lane, std::move(up));
    Placement to = Builder::in_place(everyones(at_.product, rank, slice));
    Gemm down = build_.gemm(rank, build_.one_tile(rows), RowMap::identity(rows), std::move(to));
    down.a = hidden;
    build_.step(rank, compute_lane, std::move(down));
    build_.notify(rank, compute_lane, at_.computed, slice);
  }

  void scatter(int rank, std::int64_t slice) {
    build_.await(rank, communicate_lane, at_.computed, slice);
    build_.collective(rank, CollectiveKind::reducescatter, everyones(at_.product, rank, slice),
                      build_.rows(at_.part, rank, first(slice), rows_of(slice)));
    if (at_.received >= 0) build_.notify(rank, communicate_lane, at_.received, slice);
  }

  void finish(int rank) {
    const std::int64_t rows = p_.out_rows(rank);
    for (std::int64_t i = 0; i < slices_; ++i) build_.await(rank, compute_lane, at_.received, i);
    finish_rows(build_, rank, at_.part, rows);
  }

  Builder& build_;
  const Problem& p_;
  const std::vector<std::int64_t>& begins_;
  std::int64_t slices_;
  Shard shard_;
  Stages at_;
};

}  // namespace

std::int32_t hidden_buffer(Builder& build, std::int64_t rows) {
  return build.buffer("hidden", rows, build.problem().inner);
}

void plan_mlp_slices(Builder& build, const std::vector<std::int64_t>& begins) {
  MlpSlices slices(build, begins);
  for (int r = 0; r < build.ranks(); ++r) slices.plan(r);
}

}  // namespace shingle::planner
