// The kernel of products of few rows (kernels/skinny.hpp), for compute capability 9.0.
//
// It computes the transposed product: 64 columns of op(B), the weights, are the rows of the tensor cores'
// tile, and the rows of A its columns. So a tile reads many weights, and A's few rows waste nothing. A CTA
// has whole tiles, one after another. Phases:
//
//   1. One warp fills its ring with weights, with `early` before the kernels ahead have ended. Another one
//      awaits their end, and then loads A's rows.
//   2. The other warps multiply. Up to 64 rows a step's time is that of its instructions, so two warpgroups
//      share it, each with half of K.
//   3. At the end of a tile one warpgroup adds the other's sums, and stores or sends the tile. What it sends
//      goes through shared memory, so that 128 bytes of a row leave together.
//
// Tried and slower: tiles that several CTAs share; CTAs that begin at different
// places along K, whose loads of A's rows then do not meet in L2; multicast of these rows; prefetches into L2
// beyond the ring. A decode step was slower, too, if this kernel served qkv, or gate and up with SwiGLU.
//
// Memory order: TMA loads and mbarriers order the rings, named barriers the sums.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/tensor.hpp>

#include "cuda/kernels/flagged/words.cuh"
#include "cuda/kernels/gemm/types.cuh"
#include "cuda/kernels/ptx/barrier.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/ptx/movmatrix.cuh"
#include "cuda/kernels/skinny.hpp"

namespace shingle::cuda {

/// A stage of a ring, and the parity of its barriers' phase.
template <int Stages>
struct RingStage {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < Stages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <class T, bool TransposeB, int Rows>
struct SkinnyGemm {
  using Type = typename CutlassType<T>::type;
  static constexpr int groups = Rows <= 64 ? 2 : 1;  // warpgroups that multiply
  static constexpr int warps = 4 * groups;
  static constexpr int threads = 32 * (warps + 2);
  static constexpr int block = skinny_block, blocks = skinny_step_blocks, depth = block * blocks;  // of K
  static constexpr int weight_block_bytes = skinny_columns * block * 2, row_block_bytes = Rows * block * 2;
  static constexpr int weight_bytes = blocks * weight_block_bytes, row_bytes = blocks * row_block_bytes;
  static constexpr int sum_bytes = groups == 2 ? skinny_columns * Rows * 4 : 0;
  static constexpr int row_stages = Rows <= 16 ? 8 : Rows <= 32 ? 5 : Rows <= 64 ? 4 : 3;
  static constexpr bool sends = Rows <= most_sent_rows;
  static constexpr int sent_bytes = sends ? Rows * skinny_columns * 2 : 0;
  // What is left of an SM serves the kernel behind this one, whose CTAs are there early.
  static constexpr int weight_stages =
      ((215 << 10) - row_stages * row_bytes - sum_bytes - sent_bytes) / weight_bytes;
  // The rings begin at a multiple of 1024 bytes.
  static constexpr int shared_bytes =
      weight_stages * weight_bytes + row_stages * row_bytes + sum_bytes + sent_bytes + 1024;

  static constexpr auto major = TransposeB ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  using Op =
      decltype(cute::GMMA::ss_op_selector<Type, Type, float,
                                          cute::Shape<cute::Int<skinny_columns>, cute::Int<Rows>, cute::_64>,
                                          major, cute::GMMA::Major::K>());
  using Mma = decltype(cute::make_tiled_mma(Op{}));
  using WeightAtom = std::conditional_t<TransposeB, cute::GMMA::Layout_K_SW128_Atom<Type>,
                                        cute::GMMA::Layout_MN_SW128_Atom<Type>>;
  template <class Atom, int Extent, int Stages>
  using Ring = decltype(cute::tile_to_shape(
      Atom{}, cute::Shape<cute::Int<Extent>, cute::Int<block>, cute::Int<blocks * Stages>>{}));
  using WeightRing = Ring<WeightAtom, skinny_columns, weight_stages>;
  using RowRing = Ring<cute::GMMA::Layout_K_SW128_Atom<Type>, Rows, row_stages>;

  struct Barriers {
    ptx::Barrier weights_full[weight_stages], weights_empty[weight_stages];
    ptx::Barrier rows_full[row_stages], rows_empty[row_stages];
  };

  const SkinnyParams& params;
  Barriers& barriers;
  char* const weights;
  char* const rows;
  float4* const sums_of_other;
  char* const sent;

  __device__ SkinnyGemm(const SkinnyParams& of, Barriers& shared, char* memory)
      : params(of),
        barriers(shared),
        weights(memory),
        rows(weights + weight_stages * weight_bytes),
        sums_of_other(reinterpret_cast<float4*>(rows + row_stages * row_bytes)),
        sent(rows + row_stages * row_bytes + sum_bytes) {}

  /// Calls visit(i, tile, step) for all steps of the CTA's tiles; i counts them.
  template <class Visit>
  __device__ __forceinline__ void for_each_step(Visit&& visit) const {
    int i = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < params.tiles; tile += static_cast<int>(gridDim.x))
      for (int step = 0; step < params.steps; ++step, ++i) visit(i, tile, step);
  }

  __device__ void load_weights() const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
    RingStage<weight_stages> ring;
    for_each_step([&](int i, int tile, int step) {
      if (i >= weight_stages) ptx::barrier_wait(barriers.weights_empty + ring.stage, ring.parity ^ 1);
      auto* const full = barriers.weights_full + ring.stage;
      cute::set_barrier_transaction_bytes(*full, weight_bytes);
      char* const to = weights + ring.stage * weight_bytes;
      if constexpr (TransposeB)
        cute::SM90_TMA_LOAD_3D::copy(&params.weights, full, hint, to, 0, tile * skinny_columns,
                                     step * blocks);
      else
        cute::SM90_TMA_LOAD_2D::copy(&params.weights, full, hint, to, tile * skinny_columns, step * depth);
      ring.advance();
    });
  }

  __device__ void load_rows() const {
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
    RingStage<row_stages> ring;
    for_each_step([&](int i, int, int step) {
      if (i >= row_stages) ptx::barrier_wait(barriers.rows_empty + ring.stage, ring.parity ^ 1);
      auto* const full = barriers.rows_full + ring.stage;
      cute::set_barrier_transaction_bytes(*full, blocks * params.box_rows * block * 2);
      cute::SM90_TMA_LOAD_3D::copy(&params.rows, full, hint, rows + ring.stage * row_bytes, 0, 0,
                                   step * blocks);
      ring.advance();
    });
  }

  /// Calls visit(row, col, pair) for two columns of a row at a time, of a warp's part of a tile. In a
  /// fragment of 8 columns of B a lane holds two rows of A for one column; transposed, two columns for one
  /// row.
  template <class Sums, class Visit>
  __device__ __forceinline__ void for_each_pair(int warp, int lane, const Sums& sums, Visit&& visit) const {
#pragma unroll
    for (int j = 0; j < Rows / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        visit(8 * j + lane / 4, warp * 16 + half * 8 + lane % 4 * 2,
              ptx::transposed_8x8(packed(sums(4 * j + 2 * half), sums(4 * j + 2 * half + 1))));
  }

  /// Stores a warp's part of a tile.
  template <class Sums>
  __device__ void store(int tile, int warp, int lane, const Sums& sums) const {
    T* const c = static_cast<T*>(params.c) + tile * skinny_columns;
    for_each_pair(warp, lane, sums, [&](int row, int col, std::uint32_t pair) {
      if (row < params.m && tile * skinny_columns + col < params.n)
        *reinterpret_cast<std::uint32_t*>(c + row * params.ldc + col) = pair;
    });
  }

  /// Sends a warpgroup's tile.
  template <class Sums>
  __device__ __forceinline__ void send(int tile, int thread, std::uint32_t turn, const Sums& sums) const {
    constexpr std::uint32_t complete = 3, read = 4;  // named barriers
    constexpr int words = skinny_columns * 2 / 16;   // of a row, 16 bytes each
    // Words of a row are permuted, so that neither the stores nor the loads below meet in a bank.
    const auto word = [&](int row, int i) { return sent + (row * words + (i ^ row % words)) * 16; };
    for_each_pair(thread / 32, thread % 32, sums, [&](int row, int col, std::uint32_t pair) {
      *reinterpret_cast<std::uint32_t*>(word(row, col / 8) + col % 8 * 2) = pair;
    });
    ptx::named_barrier(complete, 128);
    for (int i = thread; i < params.m * words; i += 128) {
      const int row = i / words, col = tile * skinny_columns + i % words * 8;
      if (col < params.n)
        send_word(row, col, turn, without_flags(*reinterpret_cast<const uint4*>(word(row, i % words))));
    }
    ptx::named_barrier(read, 128);
  }
  __device__ __forceinline__ void send_word(int row, int col, std::uint32_t turn, const uint4& word) const {
    const ProductSends& all = params.sends;
    for (int i = 0; i < all.count; ++i) {
      const ProductSend& one = all.sends[i];
      if (row < one.first || row >= one.first + one.rows) continue;
      for_each_copy(all.flagged, one.ranks, turn,
                    one.to + (static_cast<std::int64_t>(row - one.first) * params.n + col) * 2,
                    [&](uint4* at) { ptx::store_relaxed_sys(at, word); });
    }
  }

  /// The turn in which the kernel sends. Also brings the arguments of sends into the constant cache. The
  /// kernels ahead have ended.
  __device__ __forceinline__ std::uint32_t prepare_to_send() const {
    const ProductSends& all = params.sends;
    for (int i = 0; i < all.count; ++i) {
      const ProductSend& one = all.sends[i];
      asm volatile("" ::"l"(one.to), "r"(one.first), "r"(one.rows));
      for_each_copy(all.flagged, one.ranks, 0, 0, [](const uint4* at) { asm volatile("" ::"l"(at)); });
    }
    return all.count > 0 ? ptx::load_relaxed_sys(&all.flagged.state->turn) : 0;
  }

  __device__ static std::uint32_t packed(float x, float y) {
    std::uint32_t pair;
    if constexpr (std::is_same_v<T, __half>) {
      const __half2 both = __floats2half2_rn(x, y);
      std::memcpy(&pair, &both, sizeof pair);
    } else {
      const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
      std::memcpy(&pair, &both, sizeof pair);
    }
    return pair;
  }

  /// Adds the second warpgroup's sums to the first's. `thread`: in the warpgroup.
  template <class Sums>
  __device__ __forceinline__ void join(int group, int thread, Sums& sums) const {
    constexpr std::uint32_t written = 1, read = 2;  // named barriers
    constexpr int words = Rows / 8;
    float4* const at = sums_of_other + thread;
    if (group == 1) {
#pragma unroll
      for (int v = 0; v < words; ++v)
        at[v * 128] = {sums(4 * v), sums(4 * v + 1), sums(4 * v + 2), sums(4 * v + 3)};
    }
    ptx::named_barrier(written, 32 * warps);
    if (group == 0) {
#pragma unroll
      for (int v = 0; v < words; ++v) {
        const float4 other = at[v * 128];
        sums(4 * v) += other.x, sums(4 * v + 1) += other.y, sums(4 * v + 2) += other.z,
            sums(4 * v + 3) += other.w;
      }
    }
    ptx::named_barrier(read, 32 * warps);
  }

  __device__ void multiply() const {
    using namespace cute;
    const int group = cutlass::canonical_warp_group_idx();
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    constexpr int own = blocks / groups;  // blocks of a step that a warpgroup multiplies
    Mma mma;
    auto part = mma.get_slice(thread);
    const auto typed = [](char* at) { return make_smem_ptr(reinterpret_cast<Type*>(at)); };
    // A stage has its second block right behind the rows of the first.
    const auto of_rows = [&](int b) {
      char* const at = rows + b * params.box_rows * block * 2;
      return part.make_fragment_B(part.partition_B(make_tensor(typed(at), RowRing{})));
    };
    const auto a = part.make_fragment_A(
        part.partition_A(make_tensor(typed(weights + group * own * weight_block_bytes), WeightRing{})));
    const auto b0 = of_rows(group * own);
    const auto b1 = of_rows(blocks - 1);
    Tensor sums = partition_fragment_C(mma, Shape<Int<skinny_columns>, Int<Rows>>{});
    RingStage<weight_stages> w;
    RingStage<row_stages> r;
    int read_w = -1, read_r = -1;  // stages of the step before
    std::uint32_t turn = 0;
    mma.accumulate_ = GMMA::ScaleOut::Zero;
    for_each_step([&](int i, int tile, int step) {
      ptx::barrier_wait(barriers.weights_full + w.stage, w.parity);
      ptx::barrier_wait(barriers.rows_full + r.stage, r.parity);
      if (sends && i == 0) turn = prepare_to_send();
      warpgroup_fence_operand(sums);
      warpgroup_arrive();
#pragma unroll
      for (int k = 0; k < size<2>(a); ++k) {
        gemm(mma, a(_, _, k, w.stage * blocks), b0(_, _, k, r.stage * blocks), sums);
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      if constexpr (own == 2)
#pragma unroll
        for (int k = 0; k < size<2>(a); ++k)
          gemm(mma, a(_, _, k, w.stage * blocks + 1), b1(_, _, k, r.stage * blocks), sums);
      warpgroup_commit_batch();
      warpgroup_wait<1>();  // the step before this one is no longer read
      if (read_w >= 0 && lane == 0) {
        ptx::barrier_arrive(barriers.weights_empty + read_w);
        ptx::barrier_arrive(barriers.rows_empty + read_r);
      }
      read_w = w.stage, read_r = r.stage;
      w.advance(), r.advance();
      if (step + 1 < params.steps) return;
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      if constexpr (groups == 2) join(group, thread, sums);
      if (group == 0) {
        if (sends && params.sends.count > 0) {
          if constexpr (sends) send(tile, thread, turn, sums);
        } else {
          store(tile, thread / 32, lane, sums);
        }
      }
      mma.accumulate_ = GMMA::ScaleOut::Zero;
    });
  }

  __device__ static void run(const SkinnyParams& params, char* memory) {
    __shared__ Barriers barriers;
    if (threadIdx.x == 0) {
      for (int i = 0; i < weight_stages; ++i) {
        ptx::barrier_init(barriers.weights_full + i, 1);
        ptx::barrier_init(barriers.weights_empty + i, warps);
      }
      for (int i = 0; i < row_stages; ++i) {
        ptx::barrier_init(barriers.rows_full + i, 1);
        ptx::barrier_init(barriers.rows_empty + i, warps);
      }
      cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    const SkinnyGemm gemm(params, barriers, memory + (1024 - ptx::shared_address(memory) % 1024) % 1024);
    if (threadIdx.x == 32 * warps) {
      gemm.load_weights();
    } else if (threadIdx.x == 32 * (warps + 1)) {
      cute::prefetch_tma_descriptor(reinterpret_cast<const cute::TmaDescriptor*>(&params.rows));
      ptx::await_prerequisites();
      // A delivery that polls what this kernel sends comes when the last rows are on their way.
      if (params.sends.count == 0) ptx::launch_dependents();
      gemm.load_rows();
      ptx::launch_dependents();
    } else if (threadIdx.x < 32 * warps) {
      gemm.multiply();
    }
  }
};

template <class Gemm>
__global__ void __launch_bounds__(Gemm::threads, 1)
    skinny_kernel(const __grid_constant__ SkinnyParams params) {
  extern __shared__ char memory[];
  Gemm::run(params, memory);
}

template <class T, bool TransposeB, int Rows>
SkinnyKernel skinny_instance() {
  using Gemm = SkinnyGemm<T, TransposeB, Rows>;
  return {
      CutlassType<T>::element, TransposeB,        Rows, reinterpret_cast<const void*>(skinny_kernel<Gemm>),
      Gemm::threads,           Gemm::shared_bytes};
}

}  // namespace shingle::cuda
