// The steps of a Builder that compute: products, attention, copies and the last pass, as the problem asks for
// them and without hooks.
#include <utility>

#include "builder.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/shapes.hpp"

namespace shingle::planner {

bool Builder::needs_finishing() const {
  const Problem& p = problem();
  return p.norm.enabled || p.f32_sums || (p.traits().reduces() && p.result_epilogue().any());
}

bool Builder::row_wise_finishing() const {
  return planner::row_wise_finishing(problem());
}

bool row_wise_finishing(const Problem& p) {
  return p.norm.enabled || (p.traits().reduces() && p.result_epilogue().activation == Activation::swiglu);
}

std::int64_t Builder::product_cols() const {
  return problem().traits().reduces() ? problem().n : problem().out_cols();
}

TileGrid Builder::one_tile(std::int64_t rows) const {
  return one_tile(rows, product_cols());
}

TileGrid Builder::one_tile(std::int64_t rows, std::int64_t cols) const {
  return make_grid(rows, cols, static_cast<std::int32_t>(larger(rows, 1)), static_cast<std::int32_t>(cols));
}

std::int32_t row_block_height(std::int64_t rows, std::int32_t workers) {
  constexpr std::int32_t least = 4;
  std::int32_t tall = 64;
  while (tall > least && ceil_div(rows, tall) < 2 * workers) tall /= 2;
  return tall;
}

TileGrid Builder::row_blocks(std::int64_t rows, std::int64_t cols) const {
  return make_grid(rows, cols, row_block_height(rows, workers()), static_cast<std::int32_t>(cols));
}

Gemm Builder::gemm(int rank, const TileGrid& grid, const RowMap& a_rows, Placement placement) const {
  const Problem& p = problem();
  Gemm gemm;
  gemm.grid = grid;
  gemm.a = all(a, rank);
  gemm.b = all(p.traits().chains() ? down : b, rank);
  gemm.a_rows = a_rows;
  gemm.transpose_a = p.transpose_a;
  gemm.transpose_b = p.transpose_b;
  if (!p.traits().reduces()) {
    gemm.epilogue = p.result_epilogue();
    if (gemm.epilogue.bias) gemm.bias = all(bias, rank);
  }
  gemm.out = std::move(placement);
  // Beside communication the GEMM leaves room for it. A sequential plan gives it all workers.
  gemm.resources = {
      1, plan_.mechanism == Mechanism::sequential ? plan_.workers : plan_.workers - collective_workers_};
  return gemm;
}

Gemm Builder::grouped(Gemm product, std::vector<RowGroup> groups, TileSize tile, TileOrder order) const {
  if (groups.empty()) groups.emplace_back();  // no rows: still a grouped product, whose B stacks weights
  const std::int64_t cols = product.grid.cols;
  tile.cols = tile.within(1, cols).cols;
  product.group_tiles = order.cluster_m;
  product.grid =
      make_grid(padded_rows(groups, tile.rows, order.cluster_m), cols, tile.rows, tile.cols, order);
  product.groups = std::move(groups);
  return product;
}

Gemm Builder::up_gemm(int rank, const TileGrid& grid, const RowMap& a_rows, Placement placement) const {
  Gemm up = gemm(rank, grid, a_rows, std::move(placement));
  up.b = all(b, rank);
  up.epilogue = problem().epilogue;
  if (up.epilogue.bias) up.bias = all(bias, rank);
  return up;
}

Attend Builder::attend(int rank, std::int64_t first, std::int64_t rows, const Slice& to) const {
  return attend(first, this->rows(a, rank, first, rows), all(keys, rank), all(values, rank), to);
}

Attend Builder::attend(std::int64_t first, const Slice& q, const Slice& k, const Slice& v,
                       const Slice& to) const {
  constexpr std::int32_t query_block = 64;  // its scores against a block of keys fit the L2 cache
  Attend attend;
  attend.grid =
      make_grid(q.rows, q.cols, query_block, static_cast<std::int32_t>(problem().attention.head_dim));
  attend.first_token = first;
  attend.q = q;
  attend.keys = k;
  attend.values = v;
  attend.out = in_place(to);
  attend.resources =
      plan_.mechanism == Mechanism::sequential ? Resources{1, plan_.workers} : beside_communication();
  return attend;
}

AttendBackward Builder::attend_backward(int rank, const GlobalRun& queries, std::int64_t first_key,
                                        const Slice& k, const Slice& v, const GradientParts& to) const {
  const Attention& attention = problem().attention;
  const auto own = [&](std::int32_t buffer) { return rows(buffer, rank, queries.local_row, queries.rows); };
  AttendBackward step;
  step.grid = make_grid(queries.rows, problem().k, static_cast<std::int32_t>(larger(queries.rows, 1)),
                        static_cast<std::int32_t>(attention.heads / attention.kv_heads * attention.head_dim));
  step.first_token = queries.global_row;
  step.q = own(a);
  step.grad = own(grad);
  step.attended = own(attended);
  step.lse = own(lse);
  step.first_key = first_key;
  step.keys = k;
  step.values = v;
  step.q_grad = to.q;
  step.keys_grad = to.keys;
  step.values_grad = to.values;
  step.resources =
      plan_.mechanism == Mechanism::sequential ? Resources{1, plan_.workers} : beside_communication();
  return step;
}

Elementwise Builder::copy(const Slice& from, const Slice& to) const {
  Elementwise pass;
  pass.grid = row_blocks(from.rows, from.cols);
  pass.from.push_back(in_place(from));
  pass.to = in_place(to);
  return pass;
}

Elementwise Builder::finishing(int rank, const TileGrid& grid, std::vector<Placement> from,
                               Placement to) const {
  const Problem& p = problem();
  Elementwise pass;
  pass.grid = grid;
  pass.from = std::move(from);
  if (p.traits().reduces()) {
    pass.epilogue = p.result_epilogue();
    if (pass.epilogue.bias) pass.bias = all(bias, rank);
  }
  pass.norm = p.norm;
  if (p.norm.enabled) pass.norm_weight = all(norm_weight, rank);
  if (p.norm.residual) {
    pass.residual = pass.sum = to;
    pass.residual.slice.buffer = residual;
    pass.sum.slice.buffer = sum;
  }
  pass.to = std::move(to);
  pass.resources = beside_communication();  // it may wait for a collective, which needs free workers
  return pass;
}

}  // namespace shingle::planner
