// Output of a tile: C, bias, activation, one rounding, stores along its route, notifies.
#pragma once

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/elementwise/activation.cuh"
#include "cuda/kernels/elementwise/chunk.cuh"
#include "cuda/kernels/elementwise/route.cuh"
#include "cuda/kernels/gemm.hpp"

namespace shingle::cuda {

/// T: the CUDA type of bias, C and (unless it is fp32) output. Cols: columns of op(B) in a tile.
template <class T, int Cols>
struct TileOutput {
  static constexpr int width = 8;  ///< columns that are finished and stored together
  using Sums = float[width];

  const GemmArgs& args;

  __device__ bool fp32() const { return args.out_type == Element::f32; }
  /// Size of an output element.
  __device__ int bytes() const { return fp32() ? 4 : static_cast<int>(sizeof(T)); }
  __device__ bool gated() const { return args.activate == Activate::swiglu; }
  /// Output columns of a tile.
  __device__ int cols() const { return gated() ? Cols / 2 : Cols; }
  __device__ bool holds(const TileAt& tile) const {
    return tile.m >= 0 && std::int64_t{tile.m} * args.part_rows < args.rows &&
           std::int64_t{tile.n} * cols() < args.cols;
  }
  /// True if a tile's row is a row of the output.
  __device__ bool row_exists(int m, int row) const {
    return row / args.part_rows < args.a_parts &&
           std::int64_t{m} * args.part_rows + row % args.part_rows < args.rows;
  }
  /// True if a tile is a part of a sum, which is stored as it is.
  __device__ bool is_part(const TileSpot& tile) const { return args.sums.count > 0 && !tile.sum; }
  __device__ int dests(const TileSpot& tile) const { return is_part(tile) ? 1 : args.out.dests; }
  /// Address of a tile's row at destination d, at the tile's column 0; null if the row has none.
  __device__ char* row_at(const TileSpot& tile, int row, int d) const {
    char* const at = row_of(args.out, tile, args.part_rows, row, d);
    if (at == nullptr) return nullptr;
    return at + std::int64_t{first_col(args.out, tile, cols())} * bytes() +
           (tile.sum && d < args.sums.moved ? args.sums.shift : 0);
  }
  /// Address of a row of another rank's part, at the tile's column 0; null if the row has none.
  __device__ const char* part_at(const Route& from, const TileSpot& tile, int row) const {
    const char* const at = row_of(from, tile, args.part_rows, row);
    return at == nullptr ? nullptr : at + std::int64_t{tile.n} * cols() * static_cast<int>(sizeof(T));
  }

  /// Adds C and bias to `width` sums of an output row, and applies the activation. `up`: with swiglu, the
  /// sums that multiply the activated ones.
  __device__ void finish(std::int64_t row, std::int64_t column, Sums& x, Sums& up) const {
    if (args.c != nullptr) add_row(x, args.c, row * args.ldc + column);
    if (args.bias != nullptr) {
      add_row(x, args.bias, column);
      if (gated()) add_row(up, args.bias, args.cols + column);
    }
    if (!gated()) return activate(args.activate, x);
#pragma unroll
    for (int i = 0; i < width; ++i) x[i] = silu(x[i]) * up[i];
  }

  /// Finishes `width` columns of a tile's row, from the tile's `column` on, and stores them to all
  /// destinations. Does nothing outside the output.
  __device__ void store(const TileSpot& tile, int row, int column, Sums& x, Sums& up) const {
    const std::int64_t in_matrix = std::int64_t{tile.n} * cols() + column;
    if (!row_exists(tile.m, row) || in_matrix >= args.cols) return;
    if (tile.sum) add_parts(tile, row, column, x);
    if (!is_part(tile)) finish(std::int64_t{tile.m} * args.part_rows + row, in_matrix, x, up);
    for (int d = 0; d < dests(tile); ++d) {
      char* const to = row_at(tile, row, d);
      if (to == nullptr) continue;
      if (fp32())
        cuda::store(narrowed<float>(x), to + column * std::int64_t{sizeof(float)}, width);
      else
        cuda::store(narrowed<T>(x), to + column * std::int64_t{sizeof(T)}, width);
    }
  }

  /// Counter i of a tile, possibly null.
  __device__ std::uint32_t* counter(std::int64_t position, int i) const {
    return args.notify.counters[position * args.notify.count + i];
  }
  __device__ void count(std::uint32_t* counter) const {
    if (counter != nullptr) add_release(counter, 1, args.notify.system);
  }
  /// Notifies a tile's counters `first`, `first` + `step`, …. Must follow a barrier with all threads that
  /// stored.
  __device__ void notify(std::int64_t position, int first, int step) const {
    for (int i = first; i < args.notify.count; i += step) count(counter(position, i));
  }

 private:
  /// Adds the other ranks' parts of `width` columns of a sum, from the tile's `column` on.
  __device__ void add_parts(const TileSpot& tile, int row, int column, Sums& x) const {
    for (int part = 0; part < args.sums.count; ++part)
      if (const char* const from = part_at(args.sums.parts[part], tile, row); from != nullptr) {
        Chunk<T, width> chunk;
        load(chunk, from + column * std::int64_t{sizeof(T)}, width);
        add(x, chunk);
      }
  }
  __device__ static void add_row(Sums& x, const void* base, std::int64_t at) {
    Chunk<T, width> chunk;
    load<Reuse::often>(chunk, static_cast<const char*>(base) + at * std::int64_t{sizeof(T)}, width);
    add(x, chunk);
  }
};

}  // namespace shingle::cuda
