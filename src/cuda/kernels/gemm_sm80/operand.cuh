// Operand iterator for CUTLASS's multistage main loop: accesses of 16 bytes, one after another.
#pragma once

#include <cutlass/array.h>
#include <cutlass/matrix_coord.h>

#include "cuda/kernels/gemm.hpp"

namespace shingle::cuda {

/// Maps a tile's row i to a row of op(A). Rows that do not exist map to the last row; their results are not
/// stored.
struct RowsOfA {
  const GemmArgs& args;
  std::int32_t m;

  __device__ std::int64_t operator()(std::int32_t i) const {
    const std::int64_t first = args.a_first ? args.a_first[m] : std::int64_t{m} * args.part_rows;
    const std::int64_t row = first + i / args.part_rows * args.a_stride + i % args.part_rows;
    return row < args.a_rows ? row : args.a_rows - 1;
  }
};

/// Maps a tile's column j to a column of op(B). With swiglu, every 2 · `gated_cols` columns are so many gates
/// and their ups. One warp then multiplies all that it needs to finish its output.
template <int Cols>
struct ColumnsOfB {
  static constexpr std::int32_t gated_cols = 32;

  const GemmArgs& args;
  std::int32_t n;

  __device__ std::int64_t operator()(std::int32_t j) const {
    if (args.activate != Activate::swiglu) return inside(std::int64_t{n} * Cols + j);
    const std::int32_t column = j / (2 * gated_cols) * gated_cols + j % gated_cols;
    const bool up = j % (2 * gated_cols) >= gated_cols;
    return inside(std::int64_t{n} * (Cols / 2) + column) + (up ? args.cols : 0);
  }

 private:
  __device__ std::int64_t inside(std::int64_t column) const {
    return column < args.cols ? column : args.cols - 1;
  }
};

/// CUTLASS's concept of a tile iterator over global memory, for the loads of one thread. A line is a row of
/// op(A) or a column of op(B); each line has its own address. KMajor: true if the elements of a line are
/// contiguous, false if those of consecutive lines are. Elements beyond `depth` are invalid, and load as
/// zero.
template <class T, class ThreadMap_, bool KMajor>
class OperandIterator {
 public:
  using Element = T;
  using ThreadMap = ThreadMap_;
  using AccessType = cutlass::AlignedArray<T, ThreadMap::kElementsPerAccess>;
  static constexpr int kAccessesPerVector = 1;

  /// `line_at(i)` is the line in memory for line i of the tile. `pitch` and `depth` are in elements.
  template <class LineAt>
  CUTLASS_DEVICE OperandIterator(const void* base, std::int64_t pitch, std::int64_t depth, int thread,
                                 const LineAt& line_at)
      : base_(static_cast<const AccessType*>(base)),
        pitch_(static_cast<std::uint32_t>(pitch / width)),
        depth_(static_cast<std::int32_t>(depth)) {
    const auto first = ThreadMap::initial_offset(thread);
    k_ = KMajor ? first.contiguous() : first.strided();
    const int line = KMajor ? first.strided() : first.contiguous();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < lines; ++i) {
      const auto at = static_cast<std::uint32_t>(line_at(line + i * line_step));
      line_[i] = KMajor ? at * pitch_ : at / width;
    }
  }

  CUTLASS_DEVICE void set_iteration_index(int index) { index_ = index; }
  CUTLASS_DEVICE OperandIterator& operator++() {
    ++index_;
    return *this;
  }
  CUTLASS_DEVICE const AccessType* get() const {
    const auto k = static_cast<std::uint32_t>(k_ + along_k() * k_step);
    return base_ + (line_[along_lines()] + (KMajor ? k / width : k * pitch_));
  }
  CUTLASS_DEVICE bool valid() const { return k_ + along_k() * k_step < depth_; }
  /// The main loop only advances by one tile along k.
  CUTLASS_DEVICE void add_tile_offset(const cutlass::MatrixCoord&) { k_ += tile_depth; }
  /// Nothing to do: accesses beyond the last tile are invalid anyway.
  CUTLASS_DEVICE void clear_mask(bool) {}

 private:
  using Shape = typename ThreadMap::Shape;
  using Iterations = typename ThreadMap::Iterations;
  using Delta = typename ThreadMap::Delta;
  static constexpr int width = ThreadMap::kElementsPerAccess;
  static constexpr int lines = KMajor ? Iterations::kStrided : Iterations::kContiguous;
  static constexpr int line_step = KMajor ? Delta::kStrided : Delta::kContiguous;
  static constexpr int k_step = KMajor ? Delta::kContiguous : Delta::kStrided;
  static constexpr int tile_depth = KMajor ? Shape::kContiguous : Shape::kStrided;

  CUTLASS_DEVICE int along_k() const {
    return KMajor ? index_ % Iterations::kContiguous : index_ / Iterations::kContiguous;
  }
  CUTLASS_DEVICE int along_lines() const {
    return KMajor ? index_ / Iterations::kContiguous : index_ % Iterations::kContiguous;
  }

  const AccessType* base_;
  std::uint32_t line_[lines];  // start of each line, in accesses from the base
  std::uint32_t pitch_;        // in accesses
  std::int32_t depth_, k_;
  int index_ = 0;  // of the access; a compile-time constant, as loops over it are unrolled
};

}  // namespace shingle::cuda
