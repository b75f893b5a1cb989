// What becomes of a finished tile: epilogue, one rounding, stores along its route, and the notify.
//
// Phases, by warp (16 rows of the tile for each block of rows that its warpgroup multiplies): for every 128
// bytes of columns the accumulators, after C, bias and activation, go through the warp's own 2 KiB of shared
// memory, so that each row leaves in whole lines of 128 bytes. Rows have addresses of their own: slots,
// row-subtiles, pools, owners and scattered rows are all the same to it, on this device or another.
// Memory order: plain stores by all threads; then a barrier of the tile's threads; then a release by one of
// them, at the scope of the readers.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>

#include <cute/tensor.hpp>

#include "../gemm.hpp"
#include "../math.cuh"
#include "../ptx/release.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/stmatrix.cuh"

namespace shingle::cuda {

struct EpilogueArgs {
  std::int64_t rows = 0, cols = 0;  ///< of the output
  const void* c = nullptr;
  std::int64_t ldc = 0;
  const void* bias = nullptr;
  Activate activate = Activate::none;
  bool out_f32 = false;
  std::int32_t parts = 1;      ///< of a tile's rows, as in GemmArgs
  std::int32_t part_rows = 0;
  Route out;
  NotifyTable notify;
};

/// T: the CUDA type of bias, C and (unless it is fp32) output. Warps: that multiply; Rows × Cols: the tile.
template <class T, int Rows, int Cols, int Warps>
class HookedEpilogue {
 public:
  using ElementC = T;
  using ElementD = T;
  using StrideC = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
  using StrideD = StrideC;
  using ElementAccumulator = float;
  using Arguments = EpilogueArgs;
  using Params = EpilogueArgs;

  static constexpr int line = 128;                // bytes of a row that are stored at once
  static constexpr int slab = 16 * line;          // bytes that a warp stages
  static constexpr int all_warps = 8;             // of both warpgroups, also where each has a tile of its own
  struct SharedStorage {
    alignas(128) char staging[all_warps * slab];
  };

  template <class Problem>
  static Params to_underlying_arguments(const Problem&, const Arguments& args, void*) {
    return args;
  }
  template <class Problem>
  static std::size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }

  CUTLASS_HOST_DEVICE explicit HookedEpilogue(const Params& params) : params_(params) {}

  template <class Problem, class TileShape, class Coordinate, class Engine, class Layout, class Mma, class Residue>
  CUTLASS_DEVICE void operator()(Problem, TileShape, Coordinate tile, const cute::Tensor<Engine, Layout>& sums,
                                 Mma, Residue, int thread, char* shared) const {
    static_assert(cute::size(Mma{}) == Warps * 32, "the warps that share a tile");
    static_assert(cute::size(Layout{}) * Warps * 32 == Rows * Cols, "accumulators of one thread");
    const int m = cute::get<0>(tile), n = cute::get<1>(tile), position = cute::get<3>(tile);
    if (!holds_output(m, n)) return;  // a phantom
    const auto staging = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)) +
                         (static_cast<int>(threadIdx.x) / 32 - 4) * slab;  // the first four warps load
    if (params_.out_f32)
      store_tile<float>(m, n, position, sums, thread, staging);
    else
      store_tile<T>(m, n, position, sums, thread, staging);
    if (params_.notify.count > 0) notify(position, thread);
  }

 private:
  CUTLASS_DEVICE bool swiglu() const { return params_.activate == Activate::swiglu; }
  /// Columns of the output that a tile holds.
  CUTLASS_DEVICE int out_cols() const { return swiglu() ? Cols / 2 : Cols; }
  CUTLASS_DEVICE bool holds_output(int m, int n) const {
    return static_cast<std::int64_t>(m) * params_.part_rows < params_.rows &&
           static_cast<std::int64_t>(n) * out_cols() < params_.cols;
  }
  /// Whether a tile's row is one of the output.
  CUTLASS_DEVICE bool row_exists(int m, int row) const {
    return row / params_.part_rows < params_.parts &&
           static_cast<std::int64_t>(m) * params_.part_rows + row % params_.part_rows < params_.rows;
  }
  /// The first byte of a tile's row at destination d, or null.
  CUTLASS_DEVICE char* row_at(int m, int n, int position, int row, int d, int bytes) const {
    if (!row_exists(m, row)) return nullptr;
    const Route& out = params_.out;
    const std::int64_t column = static_cast<std::int64_t>(n) * out_cols() * bytes;
    if (out.table == nullptr) return out.base + (static_cast<std::int64_t>(m) * params_.part_rows + row) * out.row_bytes + column;
    const std::int64_t entry =
        (static_cast<std::int64_t>(out.by_tile ? position : m) * out.pieces + row / out.piece_rows) * out.dests + d;
    char* const piece = out.table[entry];
    if (piece == nullptr) return nullptr;
    return piece + (row % out.piece_rows) * out.row_bytes + (out.by_tile ? 0 : column);
  }

  template <class Out, class Sums>
  CUTLASS_DEVICE void store_tile(int m, int n, int position, const Sums& sums, int thread,
                                 std::uint32_t staging) const {
    constexpr int row_blocks = Rows / (16 * Warps);  // of 16 rows, that a warp has
    constexpr int per_block = Cols / 2;              // accumulators of a thread in each
    constexpr int chunk = line / static_cast<int>(sizeof(Out));
    const int lane = thread % 32, warp = thread / 32;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < row_blocks; ++i) {
      const int first_row = i * 16 * Warps + warp * 16;
      char* rows[4];
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 4; ++r)
        rows[r] = row_at(m, n, position, first_row + r * 4 + lane / 8, 0, sizeof(Out));
      CUTLASS_PRAGMA_UNROLL
      for (int at = 0; at < Cols; at += chunk) {
        if (swiglu() && at >= Cols / 2) break;
        stage<Out>(m, n, first_row, at, &sums(i * per_block), lane, staging);
        __syncwarp();
        store_chunk<Out>(m, n, position, first_row, at, rows, lane, staging);
        __syncwarp();
      }
    }
  }

  /// Sixteen rows of `chunk` columns from column `at` of the tile, finished, into the warp's staging. 16-byte
  /// words of a row are permuted by its number, so that neither side meets bank conflicts.
  template <class Out, class Sum>
  CUTLASS_DEVICE void stage(int m, int n, int first_row, int at, const Sum* sums, int lane,
                            std::uint32_t staging) const {
    constexpr int chunk = line / static_cast<int>(sizeof(Out));
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < chunk / 8; j += 2) {
      float x[2][4];
      CUTLASS_PRAGMA_UNROLL
      for (int h = 0; h < 2; ++h) finish(m, n, first_row, at + 8 * (j + h), sums, lane, x[h]);
      if constexpr (sizeof(Out) == 2) {
        const int row = lane % 16, word = j + lane / 16;
        ptx::stmatrix_x4(staging + row * line + ((word ^ (row & 7)) * 16), Pair<Out>::pack(x[0][0], x[0][1]),
                         Pair<Out>::pack(x[0][2], x[0][3]), Pair<Out>::pack(x[1][0], x[1][1]),
                         Pair<Out>::pack(x[1][2], x[1][3]));
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int h = 0; h < 2; ++h)
          CUTLASS_PRAGMA_UNROLL
          for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half, word = 2 * (j + h) + lane % 4 / 2;
            const std::uint32_t to = staging + row * line + ((word ^ (row & 7)) * 16) + lane % 2 * 8;
            ptx::st_shared_v2(to, x[h][2 * half], x[h][2 * half + 1]);
          }
      }
    }
  }

  /// The four accumulators of a lane in the 16×8 block at column `at`: C, bias, activation.
  template <class Sum>
  CUTLASS_DEVICE void finish(int m, int n, int first_row, int at, const Sum* sums, int lane, float (&x)[4]) const {
    const std::int64_t column = static_cast<std::int64_t>(n) * out_cols() + at + lane % 4 * 2;
    const bool inside = column < params_.cols;
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 4; ++v) x[v] = sums[at / 2 + v];
    if (swiglu()) return finish_gated(column, inside, at, sums, x);
    if (params_.c != nullptr && inside) add_c(m, first_row + lane / 4, column, x);
    if (params_.bias != nullptr && inside) add_bias(column, x);
    if (params_.activate == Activate::none) return;
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 4; ++v) x[v] = activated(params_.activate, x[v]);
  }
  template <class Sum>
  CUTLASS_DEVICE void finish_gated(std::int64_t column, bool inside, int at, const Sum* sums, float (&x)[4]) const {
    float up[4];
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 4; ++v) up[v] = sums[(at + Cols / 2) % Cols / 2 + v];
    if (params_.bias != nullptr && inside) {
      add_bias(column, x);
      add_bias(column + params_.cols, up);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 4; ++v) x[v] = silu(x[v]) * up[v];
  }
  CUTLASS_DEVICE void add_bias(std::int64_t column, float (&x)[4]) const {
    const float2 bias = Pair<T>::unpack(__ldg(reinterpret_cast<const std::uint32_t*>(params_.bias) + column / 2));
    x[0] += bias.x, x[1] += bias.y, x[2] += bias.x, x[3] += bias.y;
  }
  CUTLASS_DEVICE void add_c(int m, int row, std::int64_t column, float (&x)[4]) const {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = static_cast<std::int64_t>(m) * params_.part_rows + row + 8 * half;
      if (at >= params_.rows) continue;
      const auto* c = reinterpret_cast<const std::uint32_t*>(params_.c) + (at * params_.ldc + column) / 2;
      const float2 added = Pair<T>::unpack(__ldg(c));
      x[2 * half] += added.x, x[2 * half + 1] += added.y;
    }
  }

  /// Eight lanes store a line: 16 bytes each of four rows at a time.
  template <class Out>
  CUTLASS_DEVICE void store_chunk(int m, int n, int position, int first_row, int at, char* const (&rows)[4], int lane,
                                  std::uint32_t staging) const {
    constexpr int bytes = sizeof(Out);
    const int word = lane % 8;
    const int column = at + word * (16 / bytes);  // of the tile
    if (column >= out_cols() || static_cast<std::int64_t>(n) * out_cols() + column >= params_.cols) return;
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int row = r * 4 + lane / 8;
      const uint4 data = ptx::ld_shared_v4(staging + row * line + ((word ^ (row & 7)) * 16));
      if (rows[r] != nullptr) *reinterpret_cast<uint4*>(rows[r] + column * bytes) = data;
      for (int d = 1; d < params_.out.dests; ++d)
        if (char* to = row_at(m, n, position, first_row + row, d, bytes))
          *reinterpret_cast<uint4*>(to + column * bytes) = data;
    }
  }

  CUTLASS_DEVICE void notify(int position, int thread) const {
    cutlass::arch::NamedBarrier::sync(Warps * 32, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    if (thread != 0) return;
    for (int i = 0; i < params_.notify.count; ++i) {
      std::uint32_t* counter = params_.notify.counters[position * params_.notify.count + i];
      if (counter == nullptr) continue;
      if (params_.notify.system)
        ptx::red_release_sys_add(counter, 1);
      else
        ptx::red_release_gpu_add(counter, 1);
    }
  }

  const Params& params_;
};

}  // namespace shingle::cuda
