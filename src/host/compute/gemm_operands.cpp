// Operands of a tile's product: the matrices themselves if oneDNN can read them, else panels in scratch.
#include <algorithm>
#include <cstring>

#include "gemm.hpp"
#include "vector.hpp"

namespace shingle::host {
namespace {

/// Copies `count` elements, widened to fp32 if `as_fp32`.
void copy(DType type, const std::byte* source, std::byte* target, std::int64_t count, bool as_fp32) {
  if (as_fp32) {
    widen(type, source, reinterpret_cast<float*>(target), count);
  } else {
    std::memcpy(target, source, static_cast<std::size_t>(count) * size_bytes(type));
  }
}

bool consecutive(std::span<const Segment> segments) {
  for (std::size_t i = 1; i < segments.size(); ++i)
    if (segments[i].a_row != segments[i - 1].a_row + segments[i - 1].rows) return false;
  return true;
}

}  // namespace

GemmTask::Operand GemmTask::a_operand(Worker& worker, std::span<const Segment> segments, std::int64_t rows,
                                      const ProductTile& tile) const {
  const bool widened = !native_;
  if (!widened && consecutive(segments)) {
    const std::int64_t row = segments[0].a_row;
    if (step_.transpose_a) return {a_.at(0, row), 1, a_.ld};
    return {a_.at(row), a_.ld, 1};
  }
  // A panel keeps the order of A's storage: rows × k, or k × rows.
  const auto size = static_cast<std::int64_t>(widened ? sizeof(float) : size_bytes(a_.type));
  std::byte* panel = worker.a_panel.reserve(rows * k_ * size);
  const Operand packed = step_.transpose_a ? Operand{panel, 1, rows} : Operand{panel, k_, 1};
  const PanelKey key{execution_, tile.rect.row + segments[0].tile_row, rows};
  if (worker.a_key == key) return packed;
  worker.a_key = key;
  std::int64_t done = 0;
  for (const Segment& segment : segments) {
    if (step_.transpose_a) {
      for (std::int64_t i = 0; i < k_; ++i)
        copy(a_.type, a_.at(i, segment.a_row), panel + (i * rows + done) * size, segment.rows, widened);
    } else {
      for (std::int64_t i = 0; i < segment.rows; ++i)
        copy(a_.type, a_.at(segment.a_row + i), panel + (done + i) * k_ * size, k_, widened);
    }
    done += segment.rows;
  }
  return packed;
}

GemmTask::Operand GemmTask::b_operand(Worker& worker, const ProductTile& tile, std::int64_t col,
                                      std::int64_t cols, int which) const {
  const std::int64_t row = tile.group == nullptr ? 0 : weight_of(step_, *tile.group).row - step_.b.row;
  if (native_) {
    if (step_.transpose_b) return {b_.at(row + col), 1, b_.ld};
    return {b_.at(row, col), b_.ld, 1};
  }
  float* panel = worker.b_panel[which].reserve<float>(k_ * cols);
  const Operand packed{reinterpret_cast<std::byte*>(panel), step_.transpose_b ? 1 : cols,
                       step_.transpose_b ? k_ : 1};
  const PanelKey key{execution_, row * b_.cols + col, cols};
  if (worker.b_key[which] == key) return packed;
  worker.b_key[which] = key;
  const std::int64_t lines = step_.transpose_b ? cols : k_, length = step_.transpose_b ? k_ : cols;
  for (std::int64_t i = 0; i < lines; ++i)
    widen(b_.type, step_.transpose_b ? b_.at(row + col + i) : b_.at(row + i, col), panel + i * length,
          length);
  return packed;
}

}  // namespace shingle::host
