// Row-wise passes: a sum of sources, bias, activation or swiglu, residual, RMSNorm.
//
// A CTA consists of slices of `threads` threads. A slice takes one row of the matrix at a time, from a range
// of consecutive rows, so that its tables stay in L1. Phases of a row:
//
//   1. Every thread loads its chunks, with a batch of loads in flight. It sums them, finishes them, adds the
//      residual and stores that sum. With a norm, the thread keeps its chunks in fp32 and sums their squares.
//      Without a norm it stores them, and the row is complete.
//   2. The slice sums the squares: by shuffles in a warp, then through shared memory, with one barrier for
//      each row.
//   3. Every thread scales its chunks, rounds once and stores them.
//
// Most rows fit into one batch and consist of whole, aligned chunks. Their chunks stay in registers. In other
// rows, a thread keeps its chunks in shared memory, and looks at the address and the end of each.
//
// Memory order: none needed, as all inputs are complete before the kernel starts.
//
// Assumes: `threads` is a multiple of 32, and slices · threads is the size of the CTA. Rows with a
// destination also have an address for residual and sum.
#pragma once

#include "activation.cuh"
#include "chunk.cuh"
#include "cuda/kernels/ptx/barrier.cuh"
#include "kernels.hpp"
#include "route.cuh"

namespace shingle::cuda {

/// Sums of a slice's warps, in two buffers that alternate by row. A buffer is written again two rows later,
/// after the barrier of the row between. All its readers arrive at that barrier after reading.
struct SliceSums {
  float of[2][max_row_threads / 32];
};

/// A row, from the view of one thread of its slice. `gated`: swiglu.
template <class S, class T, bool gated>
struct RowPass {
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(T));
  static constexpr int batch = row_batch(gated);
  using Batch = float[batch][length];

  const ElementwiseArgs& args;
  const Route* sources;
  const RowLayout& layout;
  float4* cache;
  int slice;
  int lane;  ///< thread within the slice
  int out_cols;
  std::int32_t m = 0;    ///< row of tiles
  std::int32_t row = 0;  ///< within the row of tiles

  __device__ TileSpot tile(const Route& route, int n) const {
    return {route.by_tile ? args.position_of[std::int64_t{m} * args.tiles_n + n] : 0, m, n};
  }
  __device__ char* row_at(const Route& route, int dest = 0) const {
    return row_of(route, tile(route, 0), args.tile_rows, row, dest);
  }
  /// Column of tiles that holds a column. Exact while cols · tile_cols < 2³².
  __device__ int tile_of(int col) const {
    return static_cast<int>(static_cast<std::uint32_t>(col) * layout.reciprocal >> 32);
  }

  /// Address of a source at a column of the grid, in column n of tiles; null if the row has no address.
  __device__ const char* source_at(const Route& source, int n, int col) const {
    const char* const at = row_of(source, tile(source, n), args.tile_rows, row);
    const int offset = source.by_tile ? col - n * args.tile_cols : col;
    return at == nullptr ? nullptr : at + offset * std::int64_t{sizeof(S)};
  }

  /// True if the source's row may lie in several places.
  __device__ bool tiled(const Route& source) const { return source.by_tile && args.tiles_n > 1; }
  /// True if the row fits into one batch of whole chunks, at multiples of 16 bytes.
  __device__ bool fits() const {
    if (out_cols % length != 0 || out_cols > batch * layout.threads * length) return false;
    bool fits = aligned(args.bias) && aligned(args.norm_weight);
    const auto check = [&](const Route& route) {
      for (int d = 0; d < route.dests; ++d) fits = fits && aligned(row_at(route, d));
    };
    check(args.to);
    if (args.has_residual) check(args.residual), check(args.sum);
    for (int s = 0; s < args.source_count; ++s)
      if (!tiled(sources[s])) {
        const char* const at = source_at(sources[s], 0, 0);
        fits = fits && at != nullptr && aligned(at);
      }
    return fits;
  }

  /// Loads `count` elements of a source. A chunk that crosses tiles (if tile_cols is not a multiple of its
  /// length) is loaded element by element.
  __device__ void load_source(const Route& source, int col, int count, Chunk<S, length>& chunk) const {
    const int n = tile_of(col);
    if (col + count <= (n + 1) * args.tile_cols) {
      if (const char* const at = source_at(source, n, col)) load(chunk, at, count);
      return;
    }
#pragma unroll 1
    for (int i = count - 1; i >= 0; --i) {
      const char* const at = source_at(source, tile_of(col + i), col + i);
      push_front(chunk, at == nullptr ? 0 : *reinterpret_cast<const Bits<S>*>(at));
    }
  }

  __device__ int col_of(int chunk) const { return chunk * length; }
  /// Number of a chunk's elements that exist; 0 or less beyond the row.
  __device__ int left_at(int chunk) const { return min(out_cols - col_of(chunk), length); }

  /// `whole`: as fits() says.
  template <Reuse reuse, bool whole>
  __device__ Chunk<T, length> vector(const void* base, int col, int count) const {
    const char* const at = static_cast<const char*>(base) + col * std::int64_t{sizeof(T)};
    Chunk<T, length> chunk;
    if constexpr (whole)
      load_whole<reuse>(chunk, at);
    else
      load<reuse>(chunk, at, count);
    return chunk;
  }

  /// Calls act(j, c) for each chunk c of a batch that exists, the j-th of the thread.
  template <class Act>
  __device__ __forceinline__ void each(int first, Act&& act) const {
#pragma unroll
    for (int j = 0; j < batch; ++j)
      if (const int c = first + j * layout.threads; left_at(c) > 0) act(j, c);
  }

  /// Adds the sources and the bias to a batch of chunks. The output's first column is column `shift` of the
  /// grid.
  template <bool whole>
  __device__ __forceinline__ void gather(int first, int shift, Batch& x) const {
    for (int s = 0; s < args.source_count; ++s) {
      Chunk<S, length> chunk[batch];
      if (whole && !tiled(sources[s])) {
        const char* const row = source_at(sources[s], 0, shift);
        each(first, [&](int j, int c) { load_whole(chunk[j], row + col_of(c) * std::int64_t{sizeof(S)}); });
      } else {
        each(first, [&](int j, int c) { load_source(sources[s], shift + col_of(c), left_at(c), chunk[j]); });
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) add(x[j], chunk[j]);
    }
    if (args.bias == nullptr) return;
    each(first, [&](int j, int c) {
      add(x[j], vector<Reuse::often, whole>(args.bias, shift + col_of(c), left_at(c)));
    });
  }

  /// Phase 1 of a batch, up to the sum. Elements beyond the row become zero.
  template <bool whole>
  __device__ __forceinline__ void finish(int first, Batch& x) const {
    Chunk<T, length> residual[batch];
    if (args.has_residual) {
      const char* const at = row_at(args.residual);
      each(first, [&](int j, int c) { residual[j] = vector<Reuse::once, whole>(at, col_of(c), left_at(c)); });
    }
    gather<whole>(first, 0, x);
    if constexpr (gated) {
      Batch up = {};
      gather<whole>(first, out_cols, up);
#pragma unroll
      for (int j = 0; j < batch; ++j)
#pragma unroll
        for (int i = 0; i < length; ++i) x[j][i] = silu(x[j][i]) * up[j][i];
    } else if (args.activate != Activate::none) {
#pragma unroll
      for (int j = 0; j < batch; ++j) activate(args.activate, x[j]);
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) add(x[j], residual[j]);
  }

  __device__ void store_row(const Route& route, int chunk, const float (&x)[length]) const {
    const Chunk<T, length> result = narrowed<T>(x);
    for (int d = 0; d < route.dests; ++d)
      if (char* const to = row_at(route, d))
        store(result, to + col_of(chunk) * std::int64_t{sizeof(T)}, left_at(chunk));
  }

  /// Stores a batch of whole chunks.
  __device__ __forceinline__ void store_batch(const Route& route, const Batch& x) const {
    for (int d = 0; d < route.dests; ++d) {
      char* const to = row_at(route, d);
      if (to == nullptr) continue;
      each(lane,
           [&](int j, int c) { store_whole(narrowed<T>(x[j]), to + col_of(c) * std::int64_t{sizeof(T)}); });
    }
  }

  /// All phases of a row that fits.
  __device__ __forceinline__ void run_at_once(float* warps) const {
    Batch x = {};
    finish<true>(lane, x);
    if (args.has_residual) store_batch(args.sum, x);
    if (args.norm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < batch; ++j)
#pragma unroll
        for (int i = 0; i < length; ++i) squares += x[j][i] * x[j][i];
      const float inverse = inverse_of(squares, warps);
      each(lane, [&](int j, int c) {
        const Chunk<T, length> weight = vector<Reuse::often, true>(args.norm_weight, col_of(c), length);
#pragma unroll
        for (int i = 0; i < length; ++i) x[j][i] = x[j][i] * inverse * widened(weight, i);
      });
    }
    store_batch(args.to, x);
  }

  /// Phase 1. Returns the thread's part of the sum of squares.
  __device__ __forceinline__ float gather_row() const {
    float squares = 0;
    for (int first = lane; left_at(first) > 0; first += batch * layout.threads) {
      Batch x = {};
      finish<false>(first, x);
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int c = first + j * layout.threads;
        if (left_at(c) <= 0) continue;
        if (args.has_residual) store_row(args.sum, c, x[j]);
        if (!args.norm) store_row(args.to, c, x[j]);
#pragma unroll
        for (int i = 0; i < length; ++i) squares += x[j][i] * x[j][i];
        if (args.norm) keep(c, x[j]);
      }
    }
    return squares;
  }

  /// Writes a chunk as planes of four floats, so that neighbouring threads use neighbouring banks.
  __device__ void keep(int chunk, const float (&x)[length]) const {
#pragma unroll
    for (int i = 0; i < length; i += 4)
      cache[i / 4 * (layout.cached / length) + chunk] = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  }

  /// Phase 2. Returns the sum over the slice.
  __device__ float sum_of_slice(float value, float* warps) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    if (layout.threads == 32) return value;
    if (lane % 32 == 0) warps[lane / 32] = value;
    ptx::named_barrier(static_cast<std::uint32_t>(slice + 1), static_cast<std::uint32_t>(layout.threads));
    float sum = 0;
    for (int w = 0; w < layout.threads / 32; ++w) sum += warps[w];
    return sum;
  }

  /// The factor of the norm, from a thread's part of the sum of squares.
  __device__ float inverse_of(float squares, float* warps) const {
    const float mean = sum_of_slice(squares, warps) / static_cast<float>(out_cols);
    return 1.0f / sqrtf(mean + args.epsilon);
  }

  /// Phase 3.
  __device__ __forceinline__ void scale_row(float inverse) const {
#pragma unroll 2
    for (int c = lane; left_at(c) > 0; c += layout.threads) {
      const Chunk<T, length> weight = vector<Reuse::often, false>(args.norm_weight, col_of(c), left_at(c));
      float x[length];
#pragma unroll
      for (int i = 0; i < length; i += 4) {
        const float4 part = cache[i / 4 * (layout.cached / length) + c];
        x[i] = part.x * inverse * widened(weight, i);
        x[i + 1] = part.y * inverse * widened(weight, i + 1);
        x[i + 2] = part.z * inverse * widened(weight, i + 2);
        x[i + 3] = part.w * inverse * widened(weight, i + 3);
      }
      store_row(args.to, c, x);
    }
  }

  __device__ bool goes_somewhere() const {
    for (int d = 0; d < args.to.dests; ++d)
      if (row_at(args.to, d) != nullptr) return true;
    return false;
  }

  __device__ __forceinline__ void run(float* warps) const {
    if (fits()) return run_at_once(warps);
    const float squares = gather_row();
    if (args.norm) scale_row(inverse_of(squares, warps));
  }
};

template <class S, class T, bool gated>
__global__ void __launch_bounds__(max_row_threads, 1)
    rows_kernel(const __grid_constant__ ElementwiseArgs args, const __grid_constant__ RowLayout layout) {
  __shared__ SliceSums sums[max_row_threads / 32];
  __shared__ Route sources[max_sources];
  extern __shared__ float4 cache[];
  load_sources(args, sources);
  __syncthreads();

  const int slice = static_cast<int>(threadIdx.x) / layout.threads;
  const std::int64_t slices = std::int64_t{gridDim.x} * layout.slices;
  const std::int64_t number = std::int64_t{blockIdx.x} * layout.slices + slice;
  const std::int64_t start = args.first * args.tile_rows;
  const std::int64_t rows = min(args.last * args.tile_rows, args.rows) - start;
  const int begin = static_cast<int>(start + rows * number / slices);
  const int end = static_cast<int>(start + rows * (number + 1) / slices);

  RowPass<S, T, gated> pass{args,
                            sources,
                            layout,
                            cache + slice * (layout.cached / 4),
                            slice,
                            static_cast<int>(threadIdx.x) % layout.threads,
                            static_cast<int>(gated ? args.cols / 2 : args.cols)};
  int turn = 0;
  for (int row = begin; row < end; ++row) {
    pass.m = row / args.tile_rows;
    pass.row = row % args.tile_rows;
    if (!pass.goes_somewhere()) continue;
    pass.run(sums[slice].of[turn]);
    turn ^= 1;
  }
}

}  // namespace shingle::cuda
