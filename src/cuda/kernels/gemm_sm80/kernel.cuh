// One instance of the instrumented GEMM for compute capability 8.0 and above: CUTLASS's multistage main loop
// (cp.async and mma.sync) in a persistent kernel with our tile order, gates, operands and epilogue.
//
// Phases of each tile, by all threads of the CTA: await the gates; multiply; stage the sums in shared memory
// and store them; notify. A warp stages 32 rows at a time, so that rows leave in whole lines.
//
// Memory order, loads: the polling threads await the gates (acquire.sys), then a CTA barrier, then loads by
// all threads.
//
// Memory order, stores: stores by all threads, then a CTA barrier, then a release-add at the scope of the
// counters' readers, which covers them all. That barrier also protects the staged sums from the next tile's
// operands, which use the same shared memory.
//
// Checks: prepare() rejects unaligned operands, split-K, pieces of a transposed A, and C with several pieces.
#pragma once

#include <cstring>

#include <cutlass/gemm/threadblock/default_mma_core_sm80.h>
#include <cutlass/gemm/threadblock/mma_multistage.h>
#include <cutlass/version.h>

#include "cuda/kernels/gemm/live.cuh"
#include "cuda/kernels/gemm/output.cuh"
#include "cuda/kernels/gemm/types.cuh"
#include "cuda/kernels/wait.cuh"
#include "operand.cuh"

static_assert(
    CUTLASS_MAJOR == 4 && CUTLASS_MINOR == 2,
    "operand.cuh and store_tile lean on how this version's main loop asks for operands and lays out sums");

namespace shingle::cuda {

template <class Gemm>
__global__ void __launch_bounds__(Gemm::threads, 1)
    multistage_kernel(const __grid_constant__ typename Gemm::Args args) {
  extern __shared__ uint4 shared[];
  Gemm::run(args, *reinterpret_cast<typename Gemm::Shared*>(shared));
}

/// Depth: the k of one load, in each of `Stages` buffers. Two rows of warps share a tile. Plain kernels serve
/// sums, too.
template <class T, bool TransposeA, bool TransposeB, int Rows, int Cols, int Depth, int Stages, GemmKind Kind>
struct MultistageGemm {
  static constexpr bool Counted = Kind == GemmKind::counted;
  using Args = std::conditional_t<Counted, CountedGemmArgs, GemmArgs>;
  using Type = typename CutlassType<T>::type;
  using Tile = cutlass::gemm::GemmShape<Rows, Cols, Depth>;
  using Warp = cutlass::gemm::GemmShape<Rows / 2, 64, Depth>;
  using LayoutA = std::conditional_t<TransposeA, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using LayoutB = std::conditional_t<TransposeB, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using Core = cutlass::gemm::threadblock::DefaultMmaCore<
      Tile, Warp, cutlass::gemm::GemmShape<16, 8, 16>, Type, LayoutA, Type, LayoutB, float,
      cutlass::layout::RowMajor, cutlass::arch::OpClassTensorOp, Stages, cutlass::arch::OpMultiplyAdd>;
  using OperandA = OperandIterator<Type, typename Core::IteratorThreadMapA, !TransposeA>;
  using OperandB = OperandIterator<Type, typename Core::IteratorThreadMapB, TransposeB>;
  using Mma = cutlass::gemm::threadblock::MmaMultistage<
      Tile, OperandA, typename Core::SmemIteratorA, cutlass::arch::CacheOperation::Global, OperandB,
      typename Core::SmemIteratorB, cutlass::arch::CacheOperation::Global, float, cutlass::layout::RowMajor,
      typename Core::MmaPolicy, Stages, cutlass::gemm::SharedMemoryClearOption::kZfill>;
  using Sums = typename Mma::FragmentC;
  using Columns = ColumnsOfB<Cols>;
  using Output = TileOutput<T, Cols>;

  static constexpr int threads = Core::kThreads;
  static constexpr int staged_rows = 32;
  /// Of a warp. The padding avoids bank conflicts when lanes store sums.
  using Staging = float[staged_rows][Warp::kN + 8];
  struct Nothing {};
  struct Shared {
    union {
      typename Mma::SharedStorage operands;
      Staging staging[threads / 32];
    };
    std::conditional_t<Counted, DealtTiles, Nothing> dealt;
  };
  static_assert(sizeof(Shared) <= 99 * 1024, "a CTA's shared memory on compute capability 8.6");
  static_assert(threads <= DealtTiles::most_warps * 32, "warps that deal tiles");
  static_assert(Warp::kN == 2 * Columns::gated_cols, "a warp has the gates and ups of its output");

  __device__ static void run(const Args& args, Shared& shared) {
    const Output output{args};
    const Works works(args, shared);
    for (std::int32_t i = 0, position = works.at(0); position < args.positions; position = works.at(++i)) {
      const PackedTile packed = args.works[position].tile;
      const TileAt tile{packed.m(), packed.n()};
      if (!output.holds(tile)) continue;
      if (args.gate.count > 0) pass_gates(args, args.gate, position);
      std::int32_t live = Rows;
      if constexpr (Counted) live = LiveTiles::counted(args.live[position]);
      if (!Counted || are_all_told(live > 0)) {
        Sums sums;
        multiply(args, tile, shared, sums);
        const bool sum = args.sums.holds(tile.m);
        if (sum) pass_gates(args, args.sums.gate, position);
        store_tile(output, {position, tile.m, tile.n, sum}, live, shared, sums);
      }
      __syncthreads();
      output.notify(position, static_cast<int>(threadIdx.x), threads);
    }
  }

  /// The positions that a CTA computes, in order; beyond the last one `args.positions` or more.
  struct Works {
    const Args& args;
    Shared& shared;

    /// Called by all threads of the CTA.
    __device__ Works(const Args& of, Shared& memory) : args(of), shared(memory) {
      if constexpr (Counted)
        if (DealtTiles::suits(args)) shared.dealt.deal(LiveTiles(args), args.positions, args.notify);
    }
    __device__ std::int32_t at(std::int32_t i) const {
      if constexpr (Counted)
        if (DealtTiles::suits(args)) return shared.dealt.at(LiveTiles(args), i, args.positions);
      return static_cast<std::int32_t>(blockIdx.x + static_cast<unsigned>(i) * gridDim.x);
    }
  };

  static cudaError_t prepare(const GemmArgs& args, void* params) {
    const bool pieces = args.a_parts > 1 || args.part_rows != Rows || args.a_first != nullptr;
    if ((TransposeA && pieces) || (args.a_parts > 1 && args.c != nullptr) || args.split.others > 0)
      return cudaErrorInvalidValue;
    for (const std::int64_t elements : {args.cols, args.k, args.lda, args.ldb, args.ldc})
      if (elements % 8 != 0) return cudaErrorInvalidValue;
    for (const void* at : {args.a, args.b, args.c, args.bias})
      if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0) return cudaErrorInvalidValue;
    std::memcpy(params, &static_cast<const Args&>(args), sizeof(Args));
    return cudaSuccess;
  }

  static cudaError_t launch(const void* params, std::int32_t ctas, cudaStream_t stream) {
    const auto& args = *static_cast<const Args*>(params);
    multistage_kernel<MultistageGemm><<<static_cast<unsigned>(ctas), threads, sizeof(Shared), stream>>>(args);
    return cudaGetLastError();
  }

  static cudaError_t load() {
    return cudaFuncSetAttribute(multistage_kernel<MultistageGemm>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  }

  static GemmInstance instance() {
    static_assert(sizeof(Args) <= most_params_bytes, "a kernel's parameters");
    return {{Rows, Cols, 1},
            CutlassType<T>::element,
            TransposeA,
            TransposeB,
            KSplit::none,
            threads,
            static_cast<std::int32_t>(sizeof(Shared)),
            static_cast<std::int32_t>(sizeof(Args)),
            &prepare,
            &prepare,
            &launch,
            &load};
  }

 private:
  __device__ static int warp() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ static void pass_gates(const GemmArgs& args, const GateTable& gate, std::int64_t position) {
    const std::uint32_t epoch = *args.watch.epoch;
    for (int i = static_cast<int>(threadIdx.x); i < gate.count; i += threads)
      wait_for(gate.targets[position * gate.count + i], epoch, args.watch);
    __syncthreads();
  }

  /// What thread 0 says. Others may have read the count at another time, if a wait was ended.
  __device__ static bool are_all_told(bool says) { return __syncthreads_or(threadIdx.x == 0 && says) != 0; }

  __device__ static void multiply(const GemmArgs& args, const TileAt& tile, Shared& shared, Sums& sums) {
    const int thread = static_cast<int>(threadIdx.x);
    const OperandA a(args.a, args.lda, args.k, thread, RowsOfA{args, tile.m});
    const OperandB b(weight_at(args, tile.m), args.ldb, args.k, thread, Columns{args, tile.n});
    sums.clear();
    Mma mma(shared.operands, thread, warp(), lane());
    mma(static_cast<int>((args.k + Depth - 1) / Depth), sums, a, b, sums);
  }

  /// The B of a row of tiles.
  __device__ static const void* weight_at(const GemmArgs& args, std::int32_t m) {
    if (args.weight_of == nullptr) return args.b;
    const std::int64_t rows = TransposeB ? (args.activate == Activate::swiglu ? 2 : 1) * args.cols : args.k;
    return static_cast<const Type*>(args.b) + args.weight_of[m] * rows * args.ldb;
  }

  /// Stores the warp's sums; its 16×8 blocks are ordered down the rows first. Of each block a lane holds four
  /// sums: two adjacent ones in each of two rows, eight rows apart.
  __device__ static void store_tile(const Output& output, const TileSpot& tile, std::int32_t live,
                                    Shared& shared, const Sums& sums) {
    constexpr int blocks_m = Warp::kM / 16, blocks_n = Warp::kN / 8;
    Staging& staging = shared.staging[warp()];
#pragma unroll
    for (int first = 0; first < Warp::kM; first += staged_rows) {
#pragma unroll
      for (int n = 0; n < blocks_n; ++n)
#pragma unroll
        for (int i = 0; i < staged_rows / 8; ++i) {
          const float* const x = &sums[(first / 16 + i / 2 + n * blocks_m) * 4 + i % 2 * 2];
          *reinterpret_cast<float2*>(&staging[i * 8 + lane() / 4][n * 8 + lane() % 4 * 2]) = {x[0], x[1]};
        }
      __syncwarp();
      store_staged(output, tile, live, warp() % 2 * Warp::kM + first, staging);
      __syncwarp();
    }
  }

  /// Stores the warp's columns of the rows that it staged, from the tile's `first_row` on. Each lane stores
  /// eight columns of the output.
  __device__ static void store_staged(const Output& output, const TileSpot& tile, std::int32_t live,
                                      int first_row, const Staging& staging) {
    const int cols = output.gated() ? Columns::gated_cols : Warp::kN, per_row = cols / Output::width;
    const int column = lane() % per_row * Output::width, of_warp = warp() / 2 * cols;
#pragma unroll 1
    for (int row = lane() / per_row; row < staged_rows; row += 32 / per_row) {
      if (Counted && first_row + row >= live) return;  // so nothing in this loop may need all lanes
      typename Output::Sums x, up;
      load_staged(x, &staging[row][column]);
      if (output.gated()) load_staged(up, &staging[row][Columns::gated_cols + column]);
      output.store(tile, first_row + row, of_warp + column, x, up);
    }
  }
  __device__ static void load_staged(typename Output::Sums& x, const float* from) {
#pragma unroll
    for (int i = 0; i < Output::width; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(from + i);
      x[i] = part.x, x[i + 1] = part.y, x[i + 2] = part.z, x[i + 3] = part.w;
    }
  }
};

}  // namespace shingle::cuda
