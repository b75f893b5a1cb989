// sequential for ulysses-attention. One all-to-all carries Q, K and V side by side, one row for each token.
// Its result is in token order. The way back is sorted into columns by sender.
#include "planner/common/ulysses.hpp"
#include "sequential.hpp"

namespace shingle::planner {
namespace {

/// Columns of a rank's part of Q, K and V in a row that is sent.
struct Row {
  explicit Row(const Problem& p) : q(p.k / p.world), kv(p.kv_cols() / p.world) {}
  std::int64_t q, kv;
  std::int64_t cols() const { return q + 2 * kv; }
};

/// Sorts the own rows of a matrix with `rank_cols` columns for each rank by rank; `back`: the inverse.
Elementwise sort(const Slice& matrix, std::int64_t rank_cols, const Slice& sorted, bool back) {
  Elementwise pass;
  pass.grid = by_columns(matrix.rows, matrix.cols, rank_cols);
  const Placement by_rows = Builder::in_place(matrix), by_ranks = Builder::stacked(sorted);
  pass.from.push_back(back ? by_ranks : by_rows);
  pass.to = back ? by_rows : by_ranks;
  return pass;
}

void exchange_heads(Builder& build) {
  const Problem& p = build.problem();
  const Row row(p);
  std::vector<std::int64_t> shards, blocks;
  for (int r = 0; r < p.world; ++r) shards.push_back(p.a_rows(r));
  for (const std::int64_t rows : shards) blocks.push_back(p.world * rows);
  const std::int32_t packed = build.buffer("packed", blocks, row.cols());
  const std::int32_t gathered = build.buffer("gathered", p.m, row.cols());
  const std::int32_t attended = build.buffer("attended", p.m, row.q);
  const std::int32_t returned = build.buffer("returned", blocks, row.q);
  const std::int32_t packs = build.counter("packed", 1), arrived = build.counter("arrived", 1);
  const std::int32_t computed = build.counter("computed", 1), back = build.counter("returned", 1);
  for (int r = 0; r < p.world; ++r) {
    const std::vector<std::int64_t> own(static_cast<std::size_t>(p.world),
                                        shards[static_cast<std::size_t>(r)]);
    const Slice out = build.all(packed, r);
    build.step(r, compute_lane, sort(build.all(build.a, r), row.q, columns(out, 0, row.q), false));
    build.step(r, compute_lane, sort(build.all(build.keys, r), row.kv, columns(out, row.q, row.kv), false));
    build.step(r, compute_lane,
               sort(build.all(build.values, r), row.kv, columns(out, row.q + row.kv, row.kv), false));
    hand_over(build, r, packs, compute_lane, communicate_lane);
    build.collective(r, CollectiveKind::alltoall, out, build.all(gathered, r), own, shards);
    hand_over(build, r, arrived, communicate_lane, compute_lane);
    const Slice in = build.all(gathered, r);
    build.step(r, compute_lane,
               build.attend(0, columns(in, 0, row.q), columns(in, row.q, row.kv),
                            columns(in, row.q + row.kv, row.kv), build.all(attended, r)));
    hand_over(build, r, computed, compute_lane, communicate_lane);
    build.collective(r, CollectiveKind::alltoall, build.all(attended, r), build.all(returned, r), shards,
                     own);
    hand_over(build, r, back, communicate_lane, compute_lane);
    build.step(r, compute_lane, sort(build.all(build.out, r), row.q, build.all(returned, r), true));
  }
}

}  // namespace

TileGrid by_columns(std::int64_t rows, std::int64_t cols, std::int64_t rank_cols, int first) {
  constexpr std::int32_t block = 64;
  TileOrder order;
  order.raster = Raster::along_m;
  order.rotation = first;
  return make_grid(rows, cols, block, static_cast<std::int32_t>(rank_cols), order);
}

void ulysses_in_sequence(Builder& build) {
  if (build.world() > 1) return exchange_heads(build);
  build.step(0, compute_lane, build.attend(0, 0, build.problem().m, build.all(build.out, 0)));
}

}  // namespace shingle::planner
