#include "shard.hpp"

namespace shingle::planner {

Shard::Shard(Builder& build, std::int64_t slices) : buffer_(build.a) {
  const Problem& p = build.problem();
  const bool multiplied = p.op == Op::gemm_allgather_gemm;
  if (!multiplied && p.m == p.world * p.shard_rows()) return;
  buffer_ = build.buffer(multiplied ? "hidden" : "padded", p.shard_rows(), p.gathered_cols());
  made_ = build.counter(multiplied ? "multiplied" : "padded", slices);
}

void Shard::make(Builder& build, int rank, std::int64_t slice, std::int64_t first, std::int64_t rows) const {
  if (made_ < 0) return;
  const Problem& p = build.problem();
  const std::int64_t present = larger(smaller(p.a_rows(rank) - first, rows), 0);
  if (present > 0) {
    const Slice from = build.rows(build.a, rank, first, present),
                to = build.rows(buffer_, rank, first, present);
    if (p.op == Op::gemm_allgather_gemm) {
      Gemm gemm = build.up_gemm(rank, build.one_tile(present, p.inner), RowMap::identity(present),
                                Builder::in_place(to));
      gemm.a = from;
      build.step(rank, compute_lane, std::move(gemm));
    } else {
      build.step(rank, compute_lane, build.copy(from, to));
    }
  }
  build.notify(rank, compute_lane, made_, slice);
  build.await(rank, communicate_lane, made_, slice);
}

}  // namespace shingle::planner
