#include "attend_backward.hpp"

#include <algorithm>
#include <cmath>

#include "vector.hpp"

namespace shingle::host {
namespace {

// Scores of 64 queries by 256 keys and their gradients take 128 KiB.
constexpr std::int64_t backward_queries = 64, backward_keys = 256;

float dot(const float* a, const float* b, std::int64_t count) {
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

AttendBackwardTask::AttendBackwardTask(const Plan& plan, const AttendBackward& step, const Memory& memory,
                                       Products& products, std::uint32_t epoch)
    : plan_(plan),
      step_(step),
      products_(products),
      q_(memory.view(step.q, epoch)),
      grad_(memory.view(step.grad, epoch)),
      attended_(memory.view(step.attended, epoch)),
      lse_(memory.view(step.lse, epoch)),
      keys_(memory.view(step.keys, epoch)),
      values_(memory.view(step.values, epoch)),
      q_grad_(memory.view(step.q_grad, epoch)),
      keys_grad_(memory.view(step.keys_grad, epoch)),
      values_grad_(memory.view(step.values_grad, epoch)),
      dim_(plan.problem().attention.head_dim),
      sharing_(plan.problem().attention.heads / plan.problem().attention.kv_heads),
      factor_(1 / std::sqrt(static_cast<float>(dim_))) {}

void AttendBackwardTask::run(Worker& worker, std::int64_t position) const {
  const TileRect tile = step_.grid.rect(step_.grid.tile(position));
  const std::int64_t keys = step_.keys.rows, kv_col = tile.col / sharing_;
  float* const sums = worker.product[0].reserve<float>(2 * keys * dim_);
  std::fill_n(sums, 2 * keys * dim_, 0.0f);
  const Sums of{sums, sums + keys * dim_};
  for (std::int64_t col = tile.col; col < tile.col + tile.cols; col += dim_)
    for (std::int64_t row = tile.row; row < tile.row + tile.rows;) {
      const std::int64_t token = step_.first_token + row;
      const std::int64_t rows = std::min(
          {backward_queries, plan_.problem().sequence_of(token).end - token, tile.row + tile.rows - row});
      add_block(worker, {row, rows, col}, kv_col, of);
      row += rows;
    }
  for (std::int64_t key = 0; key < keys; ++key) {
    narrow(keys_grad_.type, of.keys + key * dim_, keys_grad_.at(key, kv_col), dim_);
    narrow(values_grad_.type, of.values + key * dim_, values_grad_.at(key, kv_col), dim_);
  }
}

void AttendBackwardTask::add_block(Worker& worker, const Queries& queries, std::int64_t kv_col,
                                   const Sums& sums) const {
  const std::int64_t rows = queries.rows, first = step_.first_token + queries.row;
  const Panel q = panel(q_, queries.row, rows, queries.col, worker.q_panel);
  const Panel grad = panel(grad_, queries.row, rows, queries.col, worker.grad_panel);
  const Panel attended = panel(attended_, queries.row, rows, queries.col, worker.v_panel);
  float* const deltas = worker.vectors.reserve<float>(rows);
  for (std::int64_t i = 0; i < rows; ++i)
    deltas[i] = dot(grad.data + i * grad.ld, attended.data + i * attended.ld, dim_);
  float* const q_grad = worker.product[1].reserve<float>(rows * dim_);
  std::fill_n(q_grad, rows * dim_, 0.0f);
  float* const scores = worker.scores.reserve<float>(2 * rows * backward_keys);
  float* const grads = scores + rows * backward_keys;
  float* const part = worker.weighted.reserve<float>(std::max(rows, backward_keys) * dim_);
  const TokenRange seen =
      common(plan_.problem().seen_by(first, rows), {step_.first_key, step_.first_key + step_.keys.rows});
  for (std::int64_t key = seen.first; key < seen.end; key += backward_keys) {
    const std::int64_t count = smaller(backward_keys, seen.end - key), at = key - step_.first_key;
    const Panel k = panel(keys_, at, count, kv_col, worker.k_panel);
    const Panel v = panel(values_, at, count, kv_col, worker.v_panel);
    const auto against = [&](const Panel& left, const Panel& right, float* to) {
      multiply(worker,
               {.rows = rows,
                .cols = count,
                .k = dim_,
                .a_row = left.ld,
                .a_col = 1,
                .b_row = 1,
                .b_col = right.ld,
                .c_row = count},
               left.data, right.data, to);
    };
    against(q, k, scores);
    against(grad, v, grads);
    weigh(queries, key, count, deltas, scores, grads);
    // Sums over the queries, for each key.
    const auto onto = [&](const float* weights, const Panel& of, float* to) {
      multiply(worker,
               {.rows = count,
                .cols = dim_,
                .k = rows,
                .a_row = 1,
                .a_col = count,
                .b_row = of.ld,
                .b_col = 1,
                .c_row = dim_},
               weights, of.data, part);
      add(to + at * dim_, part, count * dim_);
    };
    onto(scores, grad, sums.values);
    onto(grads, q, sums.keys);
    multiply(worker,
             {.rows = rows,
              .cols = dim_,
              .k = count,
              .a_row = count,
              .a_col = 1,
              .b_row = k.ld,
              .b_col = 1,
              .c_row = dim_},
             grads, k.data, part);
    add(q_grad, part, rows * dim_);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    narrow(q_grad_.type, q_grad + i * dim_, q_grad_.at(queries.row + i, queries.col), dim_);
}

void AttendBackwardTask::weigh(const Queries& queries, std::int64_t key, std::int64_t count,
                               const float* deltas, float* scores, float* grads) const {
  const std::int64_t first = step_.first_token + queries.row;
  for (std::int64_t i = 0; i < queries.rows; ++i) {
    float* const x = scores + i * count;
    float* const dx = grads + i * count;
    const std::int64_t visible =
        plan_.problem().attention.causal ? std::clamp<std::int64_t>(first + i + 1 - key, 0, count) : count;
    const float lse = *reinterpret_cast<const float*>(lse_.at(queries.row + i, queries.col / dim_));
    for (std::int64_t j = 0; j < visible; ++j) x[j] *= factor_;
    if (visible > 0) exponentials(x, lse, visible);
    for (std::int64_t j = 0; j < visible; ++j) dx[j] = x[j] * (dx[j] - deltas[i]) * factor_;
    std::fill(x + visible, x + count, 0.0f);
    std::fill(dx + visible, dx + count, 0.0f);
  }
}

AttendBackwardTask::Panel AttendBackwardTask::panel(const View& view, std::int64_t row, std::int64_t rows,
                                                    std::int64_t col, Scratch& scratch) const {
  if (view.type == DType::f32) return {reinterpret_cast<const float*>(view.at(row, col)), view.ld};
  float* const wide = scratch.reserve<float>(rows * dim_);
  for (std::int64_t i = 0; i < rows; ++i) widen(view.type, view.at(row + i, col), wide + i * dim_, dim_);
  return {wide, dim_};
}

void AttendBackwardTask::multiply(Worker& worker, const ProductShape& shape, const float* a, const float* b,
                                  float* c) const {
  const Product& product = products_.get(shape);
  product.run(reinterpret_cast<const std::byte*>(a), reinterpret_cast<const std::byte*>(b),
              reinterpret_cast<std::byte*>(c),
              worker.onednn.reserve(static_cast<std::int64_t>(product.scratch_bytes())));
}

}  // namespace shingle::host
