#include "elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "shingle/plan/placement.hpp"
#include "vector.hpp"

namespace shingle::host {
namespace {

/// Towards the second-level cache. A row that is gathered from many tiles comes in pieces too short for the
/// hardware to notice that they follow each other; without help the gather costs RMSNorm 30%, with it
/// nothing.
void prefetch(const std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t line = 64;
  for (std::int64_t i = 0; i < bytes; i += line) __builtin_prefetch(data + i, 0, 2);
}

}  // namespace

/// Where the rows of an item lie (null: nowhere), and what is the same for all of them.
struct ElementwiseTask::Rows {
  std::byte** to;
  std::byte** residual;
  std::byte** sum;
  const float* bias;
  const float* weight;
  float* result;  ///< one row
};

ElementwiseTask::ElementwiseTask(const Plan& plan, const Elementwise& step, const Memory& memory,
                                 std::uint32_t epoch)
    : plan_(plan),
      step_(step),
      out_cols_(step.epilogue.activation == Activation::swiglu ? step.grid.cols / 2 : step.grid.cols) {
  const auto buffer = [&](const Placement& at) {
    return memory.buffer(at.slice.buffer, at.slice.rank, epoch);
  };
  for (const Placement& source : step.from) from_.push_back(buffer(source));
  to_ = buffer(step.to);
  if (step.epilogue.bias) bias_ = memory.view(step.bias, epoch);
  if (step.norm.enabled) weight_ = memory.view(step.norm_weight, epoch);
  if (step.norm.residual) {
    residual_ = buffer(step.residual);
    sum_ = buffer(step.sum);
  }
}

std::int64_t ElementwiseTask::run(Worker& worker, std::int64_t item) const {
  return row_wise(step_) ? run_row_of_tiles(worker, item) : run_tile(worker, item);
}

void ElementwiseTask::locate(const Placement& at, const View& buffer, std::int64_t position, std::byte** rows,
                             std::int64_t count) const {
  std::fill_n(rows, count, nullptr);
  for_each_piece(at, step_.grid, plan_.problem.routing.get(), position, [&](const Piece& piece) {
    for (std::int64_t i = 0; i < piece.rows; ++i)
      rows[piece.tile_row + i] = buffer.at(piece.row + i, piece.col);
  });
}

std::int64_t ElementwiseTask::run_tile(Worker& worker, std::int64_t position) const {
  const TileRect tile = step_.grid.rect(step_.grid.tile(position));
  const std::size_t sources = step_.from.size(), count = static_cast<std::size_t>(tile.rows);
  worker.rows.resize((sources + 1) * count);
  std::byte** to = worker.rows.data() + sources * count;
  for (std::size_t s = 0; s < sources; ++s)
    locate(step_.from[s], from_[s], position, worker.rows.data() + s * count, tile.rows);
  locate(step_.to, to_, position, to, tile.rows);

  const bool reorder = sources == 1 && !step_.epilogue.any() && from_[0].type == to_.type;
  const auto bytes = tile.cols * static_cast<std::int64_t>(size_bytes(to_.type));
  std::int64_t stored = 0;
  float* x = worker.row.reserve<float>(tile.cols);
  float* bias = worker.vectors.reserve<float>(tile.cols);
  if (step_.epilogue.bias) widen(bias_.type, bias_.at(0, tile.col), bias, tile.cols);
  for (std::size_t i = 0; i < count; ++i) {
    if (to[i] == nullptr) continue;
    stored += bytes;
    if (reorder) {
      if (worker.rows[i] != nullptr) std::memcpy(to[i], worker.rows[i], static_cast<std::size_t>(bytes));
      continue;
    }
    std::fill_n(x, tile.cols, 0.0f);
    for (std::size_t s = 0; s < sources; ++s)
      if (const std::byte* source = worker.rows[s * count + i])
        widen_add(from_[s].type, source, x, tile.cols);
    if (step_.epilogue.bias) add(x, bias, tile.cols);
    activate(step_.epilogue.activation, x, tile.cols);
    narrow(to_.type, x, to[i], tile.cols);
  }
  return stored;
}

std::int64_t ElementwiseTask::run_row_of_tiles(Worker& worker, std::int64_t tile_m) const {
  const TileGrid& grid = step_.grid;
  const TileRect corner = grid.rect({tile_m, 0});
  const std::size_t sources = step_.from.size(), count = static_cast<std::size_t>(corner.rows);
  const auto across = static_cast<std::size_t>(grid.tiles_n());
  worker.rows.resize((sources * across + 3) * count);
  std::byte** next = worker.rows.data();
  const auto located = [&](const Placement& at, const View& buffer, std::int64_t n) {
    locate(at, buffer, grid.linear({tile_m, n}), next, corner.rows);
    return std::exchange(next, next + count);
  };
  for (std::size_t s = 0; s < sources; ++s)
    for (std::size_t n = 0; n < across; ++n) located(step_.from[s], from_[s], static_cast<std::int64_t>(n));

  float* vectors = worker.vectors.reserve<float>(2 * grid.cols + out_cols_);
  Rows rows{located(step_.to, to_, 0), nullptr, nullptr, vectors, vectors + grid.cols,
            vectors + 2 * grid.cols};
  if (step_.norm.residual) {
    rows.residual = located(step_.residual, residual_, 0);
    rows.sum = located(step_.sum, sum_, 0);
  }
  if (step_.epilogue.bias) widen(bias_.type, bias_.at(0), vectors, grid.cols);
  if (step_.norm.enabled) widen(weight_.type, weight_.at(0), vectors + grid.cols, out_cols_);

  float* x = worker.row.reserve<float>(grid.cols);
  std::int64_t stored = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (rows.to[i] == nullptr) continue;
    gather_row(worker, i, count, x);
    finish_row(x, rows, static_cast<std::int64_t>(i));
    stored += out_cols_ * static_cast<std::int64_t>(size_bytes(to_.type));
  }
  return stored;
}

/// The sum of the sources' i-th rows, of `count` in the item, from all tiles.
void ElementwiseTask::gather_row(const Worker& worker, std::size_t i, std::size_t count, float* x) const {
  const TileGrid& grid = step_.grid;
  const auto across = static_cast<std::size_t>(grid.tiles_n());
  for (std::size_t s = 0; s < step_.from.size(); ++s) {
    const DType type = from_[s].type;
    for (std::size_t n = 0; n < across; ++n) {
      const std::int64_t col = static_cast<std::int64_t>(n) * grid.tile_cols;
      const std::int64_t cols = smaller(grid.tile_cols, grid.cols - col);
      std::byte* const* source = worker.rows.data() + (s * across + n) * count + i;
      if (i + 1 < count && source[1] != nullptr)
        prefetch(source[1], cols * static_cast<std::int64_t>(size_bytes(type)));
      if (*source == nullptr) {
        if (s == 0) std::fill_n(x + col, cols, 0.0f);
      } else if (s == 0) {
        widen(type, *source, x + col, cols);
      } else {
        widen_add(type, *source, x + col, cols);
      }
    }
  }
}

/// Epilogue, residual and norm of a complete row.
void ElementwiseTask::finish_row(float* x, const Rows& rows, std::int64_t row) const {
  const std::int64_t cols = step_.grid.cols;
  if (step_.epilogue.bias) add(x, rows.bias, cols);
  if (step_.epilogue.activation == Activation::swiglu) {
    swiglu(x, x + out_cols_, out_cols_);
  } else {
    activate(step_.epilogue.activation, x, cols);
  }
  if (step_.norm.residual) {
    widen_add(residual_.type, rows.residual[row], x, out_cols_);
    narrow(sum_.type, x, rows.sum[row], out_cols_);
  }
  if (!step_.norm.enabled) {
    narrow(to_.type, x, rows.to[row], out_cols_);
    return;
  }
  const float mean = sum_squares(x, out_cols_) / static_cast<float>(out_cols_);
  const float inverse = 1.0f / std::sqrt(mean + step_.norm.epsilon);
  if (to_.type == DType::f32) {
    scale(x, inverse, rows.weight, reinterpret_cast<float*>(rows.to[row]), out_cols_);
  } else {
    scale(x, inverse, rows.weight, rows.result, out_cols_);
    narrow(to_.type, rows.result, rows.to[row], out_cols_);
  }
}

}  // namespace shingle::host
