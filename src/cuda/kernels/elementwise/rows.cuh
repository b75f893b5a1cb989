// Row-wise passes: a sum of sources, bias, activation or swiglu, residual, RMSNorm.
//
// A CTA consists of slices of `threads` threads. A slice takes one row of the matrix at a time, from a range
// of consecutive rows, so that its tables stay in L1. Phases of a row:
//
//   1. Every thread loads its chunks. It sums them, finishes them, adds the residual and stores that sum.
//      With a norm, the thread keeps its chunks in fp32 and sums their squares. Without a norm it stores
//      them, and the row is complete.
//   2. The slice sums the squares: by shuffles in a warp, then through shared memory, with one barrier for
//      each row.
//   3. Every thread scales its chunks, rounds once and stores them.
//
// Most rows fit into one batch and consist of whole, aligned chunks. On compute capability 9.0, a loader warp
// copies them to shared memory ahead (row_ring.cuh), and their chunks stay in registers. A CTA copies the
// norm's weights to shared memory once, for these rows. In other rows, a thread loads its chunks itself,
// `at_once` at a time, looks at the address and the end of each, and keeps them in shared memory. Passes
// whose rows are all of that kind have a kernel without rings, which leaves threads more registers.
//
// Memory order: none needed, as all inputs are complete before the kernel starts.
//
// Assumes: `threads` is a multiple of 32, and the CTA consists of slices · threads threads and the loader
// warps. Rows with a destination also have an address for residual and sum.
#pragma once

#include "activation.cuh"
#include "chunk.cuh"
#include "cuda/kernels/ptx/barrier.cuh"
#include "kernels.hpp"
#include "route.cuh"
#include "row_ring.cuh"

namespace shingle::cuda {

/// Sums of a slice's warps, in two buffers that alternate by row. A buffer is written again two rows later,
/// after the barrier of the row between. All its readers arrive at that barrier after reading.
struct SliceSums {
  float of[2][max_row_threads / 32];
};

/// True if the device has the bulk copies that loaders need.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool has_bulk_copies = false;
#else
inline constexpr bool has_bulk_copies = true;
#endif

/// A row, from the view of one thread of its slice. `gated`: swiglu. `ringed`: slices have rings.
template <class S, class T, bool gated, bool ringed>
struct RowPass {
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(T));
  static constexpr int batch = row_batch(gated);
  using Batch = float[batch][length];
  /// Chunks in flight of a row that is not in a ring. Where others are, their loop needs the registers.
  static constexpr int at_once = ringed ? 1 : batch;
  using Chunks = float[at_once][length];

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

  /// Address of a source's row in column n of tiles, which begins at column first_col(); null if it has none.
  __device__ const char* source_at(const Route& source, int n) const {
    return row_of(source, tile(source, n), args.tile_rows, row);
  }
  __device__ int first_col(const Route& source, int n) const {
    return source.by_tile ? n * args.tile_cols : 0;
  }

  /// Loads `count` elements of a source. A chunk that crosses tiles (if tile_cols is not a multiple of its
  /// length) is loaded element by element.
  __device__ void load_source(const Route& source, int col, int count, Chunk<S, length>& chunk) const {
    const int n = tile_of(col);
    if (col + count <= (n + 1) * args.tile_cols) {
      // An offset that is added before the test for null becomes a predicated instruction behind a CS2R,
      // whose zero ptxas 13.0 does not wait for.
      if (const char* const at = source_at(source, n); at != nullptr)
        load(chunk, at + (col - first_col(source, n)) * std::int64_t{sizeof(S)}, count);
      return;
    }
#pragma unroll 1
    for (int i = count - 1; i >= 0; --i) {
      const int n = tile_of(col + i);
      const char* const at = source_at(source, n);
      push_front(chunk,
                 at == nullptr ? 0 : reinterpret_cast<const Bits<S>*>(at)[col + i - first_col(source, n)]);
    }
  }

  __device__ int col_of(int chunk) const { return chunk * length; }
  /// Number of a chunk's elements that exist; 0 or less beyond the row.
  __device__ int left_at(int chunk) const { return min(out_cols - col_of(chunk), length); }

  template <Reuse reuse>
  __device__ Chunk<T, length> vector(const void* base, int col, int count) const {
    Chunk<T, length> chunk;
    load<reuse>(chunk, static_cast<const char*>(base) + col * std::int64_t{sizeof(T)}, count);
    return chunk;
  }
  /// A whole chunk, at a multiple of 16 bytes. Also of shared memory.
  template <class E>
  __device__ static Chunk<E, length> whole(const void* base, int col) {
    Chunk<E, length> chunk;
    const char* const at = static_cast<const char*>(base) + col * static_cast<int>(sizeof(E));
#pragma unroll
    for (int i = 0; i < chunk.words; i += 4) {
      const uint4 part = *reinterpret_cast<const uint4*>(at + i * 4);
      chunk.word[i] = part.x, chunk.word[i + 1] = part.y, chunk.word[i + 2] = part.z,
      chunk.word[i + 3] = part.w;
    }
    return chunk;
  }

  /// Calls act(j, c) for each of `count` chunks c that exists, the j-th of the thread.
  template <int count, class Act>
  __device__ __forceinline__ void each(int first, Act&& act) const {
#pragma unroll
    for (int j = 0; j < count; ++j)
      if (const int c = first + j * layout.threads; left_at(c) > 0) act(j, c);
  }

  /// Adds the sources and the bias to some chunks. The output's first column is column `shift` of the grid.
  __device__ __forceinline__ void gather(int first, int shift, Chunks& x) const {
    for (int s = 0; s < args.source_count; ++s) {
      Chunk<S, length> chunk[at_once];
      each<at_once>(first,
                    [&](int j, int c) { load_source(sources[s], shift + col_of(c), left_at(c), chunk[j]); });
#pragma unroll
      for (int j = 0; j < at_once; ++j) add(x[j], chunk[j]);
    }
    if (args.bias == nullptr) return;
    each<at_once>(first, [&](int j, int c) {
      add(x[j], vector<Reuse::often>(args.bias, shift + col_of(c), left_at(c)));
    });
  }

  /// Phase 1 of some chunks between sum and residual.
  template <int count>
  __device__ __forceinline__ void apply(float (&x)[count][length], const float (&up)[count][length]) const {
    if constexpr (gated) {
#pragma unroll
      for (int j = 0; j < count; ++j)
#pragma unroll
        for (int i = 0; i < length; ++i) x[j][i] = silu(x[j][i]) * up[j][i];
    } else if (args.activate != Activate::none) {
#pragma unroll
      for (int j = 0; j < count; ++j) activate(args.activate, x[j]);
    }
  }

  __device__ void store_row(const Route& route, int chunk, const float (&x)[length]) const {
    const Chunk<T, length> result = narrowed<T>(x);
    for (int d = 0; d < route.dests; ++d)
      if (char* const to = row_at(route, d))
        store(result, to + col_of(chunk) * std::int64_t{sizeof(T)}, left_at(chunk));
  }

  /// Stores a batch of whole chunks.
  __device__ __forceinline__ void store_batch(char* const* to, int dests, const Batch& x) const {
    Chunk<T, length> result[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) result[j] = narrowed<T>(x[j]);
#pragma unroll 1
    for (int d = 0; d < dests; ++d)
      if (char* const at = to[d])
        each<batch>(lane,
                    [&](int j, int c) { store_whole(result[j], at + col_of(c) * std::int64_t{sizeof(T)}); });
  }

  /// First column of the thread's j-th chunk of a row in the ring; of the last chunk if it has none.
  __device__ int col_at(int j) const { return min(col_of(lane + j * layout.threads), out_cols - length); }
  __device__ bool has(int j) const { return col_of(lane + j * layout.threads) < out_cols; }

  /// gather() of a row in the ring; with swiglu for both halves. Chunks that the thread does not have are
  /// copies of the last.
  __device__ __forceinline__ void gather(RowRing& ring, Batch& x, Batch& up) const {
#pragma unroll 1
    for (int s = 0; s < args.source_count; ++s) {
      if (s > 0) ring.await_filled();
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        add(x[j], whole<S>(ring.piece(), col_at(j)));
        if (gated) add(up[j], whole<S>(ring.piece(), out_cols + col_at(j)));
      }
      ring.take();
    }
    if (args.bias == nullptr) return;
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      add(x[j], whole<T>(args.bias, col_at(j)));
      if (gated) add(up[j], whole<T>(args.bias, out_cols + col_at(j)));
    }
  }

  /// All phases of a row in the ring. `weights`: of the norm, in shared memory.
  __device__ __forceinline__ void run(RowRing& ring, const char* weights, float* warps) const {
    const RowHead& head = ring.head();
    Batch x = {}, up = {};
    gather(ring, x, up);
    if constexpr (gated) apply(x, up);
    if (args.has_residual) {
      ring.await_filled();
#pragma unroll
      for (int j = 0; j < batch; ++j) add(x[j], whole<T>(ring.piece(), col_at(j)));
      ring.take();
      store_batch(head.to + args.to.dests, args.sum.dests, x);
    }
    if (args.norm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (!has(j)) continue;
#pragma unroll
        for (int i = 0; i < length; ++i) squares += x[j][i] * x[j][i];
      }
      const float inverse = inverse_of(squares, warps);
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const Chunk<T, length> weight = whole<T>(weights, col_at(j));
#pragma unroll
        for (int i = 0; i < length; ++i) x[j][i] = x[j][i] * inverse * widened(weight, i);
      }
    }
    store_batch(head.to, args.to.dests, x);
  }

  /// Phase 1. Returns the thread's part of the sum of squares.
  __device__ __forceinline__ float gather_row() const {
    float squares = 0;
    for (int first = lane; left_at(first) > 0; first += at_once * layout.threads) {
      Chunks x = {}, up = {};
      Chunk<T, length> residual[at_once];
      if (args.has_residual) {  // first, so that its loads are in flight with those of the sources
        const char* const at = row_at(args.residual);
        each<at_once>(first,
                      [&](int j, int c) { residual[j] = vector<Reuse::once>(at, col_of(c), left_at(c)); });
      }
      gather(first, 0, x);
      if constexpr (gated) gather(first, out_cols, up);
      apply(x, up);
      if (args.has_residual) each<at_once>(first, [&](int j, int) { add(x[j], residual[j]); });
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
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
      const Chunk<T, length> weight = vector<Reuse::often>(args.norm_weight, col_of(c), left_at(c));
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

  /// All phases of a row that is not in the ring, unless it has no destination: returns false then.
  __device__ __forceinline__ bool run(int of_all, float* warps) {
    m = of_all / args.tile_rows;
    row = of_all % args.tile_rows;
    if (!goes_somewhere()) return false;
    const float squares = gather_row();
    if (args.norm) scale_row(inverse_of(squares, warps));
    return true;
  }
};

template <class S, class T, bool gated, bool ringed>
__device__ __forceinline__ void run_rows(const ElementwiseArgs& args, const RowLayout& layout) {
  __shared__ SliceSums sums[max_row_threads / 32];
  __shared__ std::int32_t first_row[max_row_threads / 32 + 1];  // of each slice, and of the next CTA
  __shared__ Route sources[max_sources];
  __shared__ Route routes[row_matrices];
  __shared__ std::int32_t dests[row_matrices];
  extern __shared__ __align__(128) char memory[];
  const auto ring_of = [&](int slice) { return RowRing(memory + slice * layout.slice_bytes, layout); };

  const int thread = static_cast<int>(threadIdx.x), slice = thread / layout.threads;
  load_sources(args, sources);
  if (thread <= layout.slices) {
    const std::int64_t start = args.first * args.tile_rows;
    const std::int64_t rows = min(args.last * args.tile_rows, args.rows) - start;
    first_row[thread] = static_cast<std::int32_t>(
        start + rows * (std::int64_t{blockIdx.x} * layout.slices + thread) / (gridDim.x * layout.slices));
    if (ringed && thread < layout.slices) ring_of(thread).init();
  }
  char* const weights = memory + layout.slices * layout.slice_bytes;
  if (ringed && aligned(args.norm_weight))  // else no row is in a ring
    for (int at = thread * vector_bytes; at < layout.weight_bytes;
         at += static_cast<int>(blockDim.x) * vector_bytes)
      *reinterpret_cast<uint4*>(weights + at) = ptx::load(static_cast<const char*>(args.norm_weight) + at);
  __syncthreads();
  const RowMatrices matrices{routes, dests};
  if (ringed) {
    matrices.fill(args, sources);
    __syncthreads();
  }

  RowPass<S, T, gated, ringed> pass{
      args,
      sources,
      layout,
      reinterpret_cast<float4*>(memory + (slice + 1) * layout.slice_bytes) - layout.cached / 4,
      slice,
      thread % layout.threads,
      static_cast<int>(gated ? args.cols / 2 : args.cols)};
  if (ringed && slice >= layout.slices) {  // loaders take turns
    const RowLoader<S, T> loader(args, matrices);
    const int own = (thread - layout.slices * layout.threads) / 32;
    const int most = first_row[1] - first_row[0] + 1;  // slices differ by one row at most
    for (int at = own; at < most * layout.slices; at += layout.loaders) {
      const int i = at / layout.slices, s = at % layout.slices, row = first_row[s] + i;
      if (row >= first_row[s + 1]) continue;
      RowRing ring = ring_of(s);
      ring.seek(i);
      loader.load(ring, row);
    }
    return;
  }

  const int begin = first_row[slice], end = first_row[slice + 1];
  RowRing ring = ring_of(slice);
  int turn = 0;
  for (int row = begin; row < end; ++row) {
    RowKind kind = RowKind::any;
    if (ringed) {
      ring.await_filled();
      kind = ring.head().kind;
    }
    if (kind == RowKind::whole) {
      pass.run(ring, weights, sums[slice].of[turn]);
      turn ^= 1;
    } else {
      if (kind == RowKind::any && pass.run(row, sums[slice].of[turn])) turn ^= 1;
      for (int i = 0; ringed && i < layout.row_pieces; ++i) {
        ring.await_filled();
        ring.take();
      }
    }
    if (ringed) ring.next_row();
  }
}

template <class S, class T, bool gated, bool ringed>
__global__ void __launch_bounds__(max_row_threads + (ringed ? 32 * max_row_loaders : 0), 1)
    rows_kernel(const __grid_constant__ ElementwiseArgs args, const __grid_constant__ RowLayout layout) {
  if constexpr (has_bulk_copies || !ringed) run_rows<S, T, gated, ringed>(args, layout);
}

}  // namespace shingle::cuda
