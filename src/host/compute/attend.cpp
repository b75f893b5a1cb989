#include "attend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "shingle/plan/placement.hpp"
#include "vector.hpp"

namespace shingle::host {
namespace {

/// With 64 queries and heads of 128, one block's scores, K and V take 320 KiB, which fits the L2 cache.
constexpr std::int64_t key_block = 256;

const std::byte* bytes(const float* data) {
  return reinterpret_cast<const std::byte*>(data);
}

}  // namespace

AttendTask::AttendTask(const Plan& plan, const Attend& step, const Memory& memory, Products& products,
                       std::uint32_t epoch)
    : plan_(plan),
      step_(step),
      products_(products),
      q_(memory.view(step.q, epoch)),
      keys_(memory.view(step.keys, epoch)),
      values_(memory.view(step.values, epoch)),
      outs_(plan.ranks.size()),
      dim_(plan.problem().attention.head_dim),
      sharing_(plan.problem().attention.heads / plan.problem().attention.kv_heads) {
  if (step.lse.buffer >= 0) lse_ = memory.view(step.lse, epoch);
  for (const std::int32_t rank : ranks_of(step.out, plan.world()))
    outs_[static_cast<std::size_t>(rank)] = memory.buffer(step.out.slice.buffer, rank, epoch);
}

void AttendTask::run(Worker& worker, std::int64_t position) const {
  const TileRect tile = step_.grid.rect(step_.grid.tile(position));
  float* out = worker.product[0].reserve<float>(tile.rows * dim_);
  for (std::int64_t row = 0; row < tile.rows;) {
    const std::int64_t token = step_.first_token + tile.row + row;
    const std::int64_t rows = smaller(plan_.problem().sequence_of(token).end - token, tile.rows - row);
    attend(worker, tile, row, rows, out + row * dim_);
    row += rows;
  }
  for_each_piece(step_.out, step_.grid, plan_.routing(), position, [&](const Piece& piece) {
    const View& to = outs_[static_cast<std::size_t>(piece.rank)];
    for (std::int64_t i = 0; i < piece.rows; ++i)
      narrow(to.type, out + (piece.tile_row + i) * dim_, to.at(piece.row + i, piece.col), dim_);
  });
}

std::int64_t AttendTask::crossing(std::int64_t position) const {
  std::int64_t rows = 0;
  for_each_piece(step_.out, step_.grid, plan_.routing(), position, [&](const Piece& piece) {
    if (piece.rank != step_.q.rank) rows += piece.rows;
  });
  const DType type = plan_.buffers[static_cast<std::size_t>(step_.out.slice.buffer)].dtype;
  return rows * dim_ * static_cast<std::int64_t>(size_bytes(type));
}

AttendTask::Panel AttendTask::panel(const View& view, std::int64_t row, std::int64_t rows, std::int64_t col,
                                    Scratch& scratch) const {
  if (view.type == DType::f32) return {reinterpret_cast<const float*>(view.at(row, col)), view.ld};
  float* wide = scratch.reserve<float>(rows * dim_);
  for (std::int64_t i = 0; i < rows; ++i) widen(view.type, view.at(row + i, col), wide + i * dim_, dim_);
  return {wide, dim_};
}

void AttendTask::attend(Worker& worker, const TileRect& tile, std::int64_t row, std::int64_t rows,
                        float* out) const {
  const Problem& p = plan_.problem();
  const std::int64_t first = step_.first_token + tile.row + row;
  const std::int64_t kv_col = tile.col / dim_ / sharing_ * dim_;
  const float factor = 1 / std::sqrt(static_cast<float>(dim_));
  const Panel q = panel(q_, tile.row + row, rows, tile.col, worker.q_panel);
  float* most = worker.vectors.reserve<float>(2 * rows);
  float* weight = most + rows;
  std::fill_n(most, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(weight, rows, 0.0f);
  std::fill_n(out, rows * dim_, 0.0f);
  float* scores = worker.scores.reserve<float>(rows * key_block);
  float* weighted = worker.weighted.reserve<float>(rows * dim_);
  const auto product = [&](const ProductShape& shape, const float* a, const float* b, float* c) {
    const Product& made = products_.get(shape);
    made.run(bytes(a), bytes(b), reinterpret_cast<std::byte*>(c),
             worker.onednn.reserve(static_cast<std::int64_t>(made.scratch_bytes())));
  };
  const TokenRange seen =
      common(p.seen_by(first, rows), {step_.first_key, step_.first_key + step_.keys.rows});
  for (std::int64_t key = seen.first; key < seen.end; key += key_block) {
    const std::int64_t count = smaller(key_block, seen.end - key);
    const Panel k = panel(keys_, key - step_.first_key, count, kv_col, worker.k_panel);
    const Panel v = panel(values_, key - step_.first_key, count, kv_col, worker.v_panel);
    product({.rows = rows,
             .cols = count,
             .k = dim_,
             .a_row = q.ld,
             .a_col = 1,
             .b_row = 1,
             .b_col = k.ld,
             .c_row = count},
            q.data, k.data, scores);
    for (std::int64_t i = 0; i < rows; ++i) {
      float* x = scores + i * count;
      const std::int64_t visible =
          p.attention.causal ? std::clamp<std::int64_t>(first + i + 1 - key, 0, count) : count;
      float largest = most[i];
      for (std::int64_t j = 0; j < visible; ++j) largest = std::max(largest, x[j] *= factor);
      std::fill(x + visible, x + count, 0.0f);
      if (visible == 0) continue;
      const float shrink = std::exp(most[i] - largest);
      weight[i] = weight[i] * shrink + exponentials(x, largest, visible);
      if (shrink != 1)
        for (std::int64_t j = 0; j < dim_; ++j) out[i * dim_ + j] *= shrink;
      most[i] = largest;
    }
    product({.rows = rows,
             .cols = dim_,
             .k = count,
             .a_row = count,
             .a_col = 1,
             .b_row = v.ld,
             .b_col = 1,
             .c_row = dim_},
            scores, v.data, weighted);
    add(out, weighted, rows * dim_);
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < dim_; ++j) out[i * dim_ + j] /= weight[i];
    if (lse_.data == nullptr) continue;
    *reinterpret_cast<float*>(lse_.at(tile.row + row + i, tile.col / dim_)) = most[i] + std::log(weight[i]);
  }
}

}  // namespace shingle::host
