#include "elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "plan/steps.hpp"
#include "shingle/plan/placement.hpp"
#include "vector.hpp"

namespace shingle::host {
namespace {

/// Prefetches into the L2 cache. The pieces of a row gathered from many tiles are too short for the hardware
/// prefetcher to detect a stream. Without this prefetch the gather costs RMSNorm 30%; with it, nothing.
void prefetch(const std::byte* data, std::int64_t bytes) {
  constexpr std::int64_t line = 64;
  for (std::int64_t i = 0; i < bytes; i += line) __builtin_prefetch(data + i, 0, 2);
}

/// An element of an index.
std::int32_t number(const View& index, std::int64_t row) {
  return *reinterpret_cast<const std::int32_t*>(index.at(row));
}

}  // namespace

/// Where the rows of an item lie (null: nowhere), and what all its rows share.
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
      out_cols_(step.epilogue.activation == Activation::swiglu ? step.grid.cols / 2 : step.grid.cols),
      tokens_(step.grid.rows) {
  for (const Placement& at : step.from) {
    Source& source = from_.emplace_back(Placed(plan, memory, at, epoch));
    if (const auto* picked = std::get_if<placement::Indexed>(&at.form))
      source.index = memory.view(picked->index, epoch);
  }
  to_ = Placed(plan, memory, step.to, epoch);
  if (step.factors.buffer >= 0) factors_ = memory.view(step.factors, epoch);
  if (step.epilogue.bias) bias_ = memory.view(step.bias, epoch);
  if (step.norm.enabled) weight_ = memory.view(step.norm_weight, epoch);
  if (step.norm.residual) {
    residual_ = Placed(plan, memory, step.residual, epoch);
    sum_ = Placed(plan, memory, step.sum, epoch);
  }
  if (const Slice* const tokens = matrix_of_tokens(plan, step))
    tokens_ = memory.rows(tokens->buffer, tokens->rank, epoch);
}

PlacedTile ElementwiseTask::tile_at(std::int64_t position) const {
  return {step_.grid, plan_.routing(), position, step_.grid.rect(step_.grid.tile(position))};
}

void ElementwiseTask::run(Worker& worker, std::int64_t item) const {
  const bool rows = row_wise(step_);
  if (rows) {
    run_row_of_tiles(worker, item);
  } else {
    run_tile(worker, item);
  }
  const PlacedTile tile = tile_at(rows ? step_.grid.linear({item, 0}) : item);
  to_.store_again(tile, {0, 0, tile.rect.rows, rows ? out_cols_ : tile.rect.cols});
}

std::int64_t ElementwiseTask::crossing(int rank, std::int64_t item) const {
  const bool rows = row_wise(step_);
  const auto bytes = [&](const Placement& at, DType type, std::int64_t position, std::int64_t cols) {
    std::int64_t elements = 0;
    for_each_piece(at, step_.grid, plan_.routing(), position, [&](const Piece& piece) {
      if (piece.rank == rank) return;
      const std::int64_t first = step_.grid.rect(step_.grid.tile(position)).row + piece.tile_row;
      for (std::int64_t row = first; row < first + piece.rows; ++row) elements += moves(row) ? cols : 0;
    });
    return elements * static_cast<std::int64_t>(size_bytes(type));
  };
  const auto tile_cols = [&](std::int64_t position) {
    return step_.grid.rect(step_.grid.tile(position)).cols;
  };
  const std::int64_t first = rows ? step_.grid.linear({item, 0}) : item;
  const std::int64_t stored = bytes(step_.to, to_.type, first, rows ? out_cols_ : tile_cols(first));
  std::int64_t read = 0;
  for (const Source& source : from_)
    for (std::int64_t n = 0; n < (rows ? step_.grid.tiles_n() : 1); ++n) {
      const std::int64_t position = rows ? step_.grid.linear({item, n}) : item;
      read += bytes(source.at, source.type, position, tile_cols(position));
    }
  return larger(stored, read);  // a link carries both directions at once
}

/// As Placed::locate(), for rows that are picked by an index.
void ElementwiseTask::pick(const Source& source, const TileRect& tile, std::byte** rows) const {
  const Slice& slice = source.at.slice;
  const View& view = source.on(slice.rank);
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    const std::int32_t row = number(source.index, tile.row + i);
    rows[i] = row < 0 ? nullptr : view.at(slice.row + row, slice.col + tile.col);
  }
}

/// False for a row of the grid that the rank does not have: of a token that does not exist.
bool ElementwiseTask::exists(std::int64_t row) const {
  return row < tokens_ && std::ranges::none_of(from_, [&](const Source& source) {
           return source.index.data != nullptr && number(source.index, row) < -1;
         });
}

/// False for a row that stays where it is: it does not exist, or the only source does not have it.
bool ElementwiseTask::moves(std::int64_t row) const {
  const bool picks = from_.size() == 1 && from_[0].index.data != nullptr;
  return row < tokens_ && (!picks || number(from_[0].index, row) >= 0);
}

void ElementwiseTask::run_tile(Worker& worker, std::int64_t position) const {
  const PlacedTile at = tile_at(position);
  const TileRect& tile = at.rect;
  if (tile.row >= tokens_) return;
  const std::size_t sources = step_.from.size(), count = static_cast<std::size_t>(tile.rows);
  worker.rows.resize((sources + 1) * count);
  std::byte** to = worker.rows.data() + sources * count;
  for (std::size_t s = 0; s < sources; ++s) {
    std::byte** const rows = worker.rows.data() + s * count;
    if (from_[s].index.data != nullptr)
      pick(from_[s], tile, rows);
    else
      from_[s].locate(at, rows);
  }
  to_.locate(at, to);

  const bool weighted = step_.factors.buffer >= 0;
  const bool reorder = sources == 1 && !step_.epilogue.any() && !weighted && from_[0].type == to_.type;
  const auto bytes = tile.cols * static_cast<std::int64_t>(size_bytes(to_.type));
  float* x = worker.row.reserve<float>(tile.cols);
  float* bias = worker.vectors.reserve<float>(2 * tile.cols + static_cast<std::int64_t>(sources));
  float *widened = bias + tile.cols, *factors = widened + tile.cols;
  if (step_.epilogue.bias) widen(bias_.type, bias_.at(0, tile.col), bias, tile.cols);
  for (std::size_t i = 0; i < count; ++i) {
    if (to[i] == nullptr || !exists(tile.row + static_cast<std::int64_t>(i))) continue;
    if (reorder) {
      if (worker.rows[i] != nullptr) std::memcpy(to[i], worker.rows[i], static_cast<std::size_t>(bytes));
      continue;
    }
    std::fill_n(x, tile.cols, 0.0f);
    if (weighted)
      widen(factors_.type, factors_.at(tile.row + static_cast<std::int64_t>(i)), factors,
            static_cast<std::int64_t>(sources));
    for (std::size_t s = 0; s < sources; ++s) {
      const std::byte* const source = worker.rows[s * count + i];
      if (source == nullptr) continue;
      if (weighted) {
        widen(from_[s].type, source, widened, tile.cols);
        add_scaled(x, widened, factors[s], tile.cols);
      } else {
        widen_add(from_[s].type, source, x, tile.cols);
      }
    }
    if (step_.epilogue.scale != 1) multiply(x, step_.epilogue.scale, tile.cols);
    if (step_.epilogue.bias) add(x, bias, tile.cols);
    activate(step_.epilogue.activation, x, tile.cols);
    narrow(to_.type, x, to[i], tile.cols);
  }
}

void ElementwiseTask::run_row_of_tiles(Worker& worker, std::int64_t tile_m) const {
  const TileGrid& grid = step_.grid;
  const TileRect corner = grid.rect({tile_m, 0});
  const std::size_t sources = step_.from.size(), count = static_cast<std::size_t>(corner.rows);
  const auto across = static_cast<std::size_t>(grid.tiles_n());
  worker.rows.resize((sources * across + 3) * count);
  std::byte** next = worker.rows.data();
  const auto located = [&](const Placed& placed, std::int64_t n) {
    placed.locate(tile_at(grid.linear({tile_m, n})), next);
    return std::exchange(next, next + count);
  };
  for (std::size_t s = 0; s < sources; ++s)
    for (std::size_t n = 0; n < across; ++n) located(from_[s], static_cast<std::int64_t>(n));

  float* vectors = worker.vectors.reserve<float>(2 * grid.cols + out_cols_);
  Rows rows{located(to_, 0), nullptr, nullptr, vectors, vectors + grid.cols, vectors + 2 * grid.cols};
  if (step_.norm.residual) {
    rows.residual = located(residual_, 0);
    rows.sum = located(sum_, 0);
  }
  if (step_.epilogue.bias) widen(bias_.type, bias_.at(0), vectors, grid.cols);
  if (step_.norm.enabled) widen(weight_.type, weight_.at(0), vectors + grid.cols, out_cols_);

  float* x = worker.row.reserve<float>(grid.cols);
  for (std::size_t i = 0; i < count; ++i) {
    if (rows.to[i] == nullptr) continue;
    gather_row(worker, i, count, x);
    finish_row(x, rows, static_cast<std::int64_t>(i));
  }
}

/// Sums the i-th rows of all sources, from all tiles. The item has `count` rows.
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

/// Applies epilogue, residual and norm to a complete row.
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
