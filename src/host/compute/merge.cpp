#include "merge.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shingle/plan/placement.hpp"
#include "vector.hpp"

namespace shingle::host {

MergeTask::MergeTask(const Plan& plan, const Merge& step, const Memory& memory, std::uint32_t epoch)
    : plan_(plan), step_(step), outs_(plan.ranks.size()), dim_(plan.problem().attention.head_dim) {
  for (const Merge::Part& part : step.parts)
    parts_.push_back(
        {part.row, part.value.rows, memory.view(part.value, epoch), memory.view(part.lse, epoch)});
  for (const std::int32_t rank : ranks_of(step.to, plan.world()))
    outs_[static_cast<std::size_t>(rank)] = memory.buffer(step.to.slice.buffer, rank, epoch);
  if (step.lse.buffer >= 0) lse_ = memory.view(step.lse, epoch);
}

void MergeTask::run(Worker& worker, std::int64_t position) const {
  const TileRect tile = step_.grid.rect(step_.grid.tile(position));
  float* out = worker.product[0].reserve<float>(tile.rows * tile.cols);
  for (std::int64_t i = 0; i < tile.rows; ++i)
    for (std::int64_t col = 0; col < tile.cols; col += dim_) {
      const float lse = merge(worker, tile.row + i, tile.col + col, out + i * tile.cols + col);
      if (lse_.data != nullptr)
        *reinterpret_cast<float*>(lse_.at(tile.row + i, (tile.col + col) / dim_)) = lse;
    }
  for_each_piece(step_.to, step_.grid, plan_.routing(), position, [&](const Piece& piece) {
    const View& to = outs_[static_cast<std::size_t>(piece.rank)];
    for (std::int64_t i = 0; i < piece.rows; ++i)
      narrow(to.type, out + (piece.tile_row + i) * tile.cols, to.at(piece.row + i, piece.col), tile.cols);
  });
}

std::int64_t MergeTask::crossing(std::int64_t position) const {
  std::int64_t rows = 0;
  for_each_piece(step_.to, step_.grid, plan_.routing(), position, [&](const Piece& piece) {
    if (piece.rank != step_.parts.front().value.rank) rows += piece.rows;
  });
  const DType type = plan_.buffers[static_cast<std::size_t>(step_.to.slice.buffer)].dtype;
  return rows * step_.grid.rect(step_.grid.tile(position)).cols * static_cast<std::int64_t>(size_bytes(type));
}

float MergeTask::merge(Worker& worker, std::int64_t row, std::int64_t col, float* out) const {
  const auto has = [&](const Part& part) { return part.row <= row && row < part.row + part.rows; };
  const auto lse_of = [&](const Part& part) {
    return *reinterpret_cast<const float*>(part.lse.at(row - part.row, col / dim_));
  };
  float most = -std::numeric_limits<float>::infinity(), sum = 0;
  for (const Part& part : parts_)
    if (has(part)) most = std::max(most, lse_of(part));
  float* wide = worker.row.reserve<float>(dim_);
  std::fill_n(out, dim_, 0.0f);
  for (const Part& part : parts_) {
    if (!has(part)) continue;
    const float weight = std::exp(lse_of(part) - most);
    widen(part.value.type, part.value.at(row - part.row, col), wide, dim_);
    for (std::int64_t j = 0; j < dim_; ++j) out[j] += weight * wide[j];
    sum += weight;
  }
  for (std::int64_t j = 0; j < dim_; ++j) out[j] /= sum;
  return most + std::log(sum);
}

}  // namespace shingle::host
