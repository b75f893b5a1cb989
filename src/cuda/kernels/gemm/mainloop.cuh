// CUTLASS's main loop for sm90, with gates before each tile and two more ways to load operands.
#pragma once

#include <cuda.h>

#include <cutlass/gemm/collective/collective_mma.hpp>

#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/ptx/memory.cuh"
#include "cuda/kernels/wait.cuh"
#include "parts.cuh"

namespace shingle::cuda {

/// Tensor maps and geometry of loads that CUTLASS's main loop cannot express.
struct LoadPieces {
  CUtensorMap a;  ///< op(A), K-major, boxes of `part_rows` rows
  /// op(B), boxes of half a tile's columns (of those that a CTA loads).
  CUtensorMap b;
  std::int32_t a_parts = 0;  ///< 0: whole tiles of consecutive rows
  std::int32_t part_rows = 0;
  std::int64_t a_stride = 0;
  const std::int32_t* a_first = nullptr;
  bool b_halves = false;                    ///< a tile's columns are two halves
  std::int32_t apart = 0;                   ///< columns from a tile's first half to its second
  std::int32_t tile_cols = 0;               ///< columns from a tile's first half to that of the next tile
  const std::int32_t* weight_of = nullptr;  ///< GemmArgs::weight_of; `b` then has a third coordinate

  CUTLASS_HOST_DEVICE bool any() const { return a_parts > 0 || b_halves; }
};

/// A main loop's policy by which CUTLASS's kernel layer runs a warp for auxiliary loads.
template <class Base>
struct WithPartsWarp : Base {};

/// Derives from the main loop that CUTLASS's builder made, and leaves the multiplication unchanged. In
/// ping-pong kernels, whose works are all equally deep, the kernel layer's K is the depth of one split-K
/// part. The tensor maps cover all of K, so loads beyond its end give zeros.
///
/// Memory order: one elected thread of the load warp awaits the gates with acquire. A proxy fence then orders
/// its TMA loads after that acquire.
template <class Base, class Epilogue, bool Sums>
class HookedMainloop : public Base {
 public:
  using DispatchPolicy =
      std::conditional_t<Sums, WithPartsWarp<typename Base::DispatchPolicy>, typename Base::DispatchPolicy>;
  using TileShape = typename Base::TileShape;
  using Pipeline = typename Base::MainloopPipeline;
  using Cluster = typename Base::DispatchPolicy::ClusterShape;
  static constexpr bool k_major_a = cutlass::gemm::detail::is_k_major<typename Base::StrideA>();
  static constexpr int depth = cute::size<2>(TileShape{});
  static constexpr std::uint32_t row_bytes = depth * 2;
  static constexpr bool k_major_b = cutlass::gemm::detail::is_k_major<typename Base::StrideB>();

  struct Arguments : Base::Arguments {
    GateTable gate;
    Watch watch;
    LoadPieces pieces;
    std::int32_t k;
    PartsArgs parts;
  };
  struct Params : Base::Params {
    GateTable gate;
    Watch watch;
    LoadPieces pieces;
    std::int32_t k;
    PartsArgs parts;
  };

  template <class Problem>
  static Params to_underlying_arguments(const Problem& problem, const Arguments& args, void* workspace) {
    Problem whole = problem;
    cute::get<2>(whole) = args.k;
    Params params{Base::to_underlying_arguments(whole, args, workspace),
                  args.gate,
                  args.watch,
                  args.pieces,
                  args.k,
                  args.parts};
    if (args.pieces.a_parts > 0) {  // the mbarrier must expect the bytes that arrive
      params.tma_transaction_bytes_mk = args.pieces.a_parts * args.pieces.part_rows * row_bytes;
      params.tma_transaction_bytes = params.tma_transaction_bytes_mk + params.tma_transaction_bytes_nk;
    }
    return params;
  }

  template <class A, class B, class KIterator, class Coordinate>
  CUTLASS_DEVICE void load(const Params& params, Pipeline pipeline, typename Base::PipelineState write,
                           const cute::tuple<A, B>& inputs, const Coordinate& tile, KIterator from,
                           int k_tiles, int lane, std::uint32_t rank_in_cluster,
                           typename Base::TensorStorage& shared) {
    const WorkCode work{cute::get<3>(tile)};
    if (params.gate.count > 0) {
      if (cute::elect_one_sync()) pass_gates(params, work.position());
      __syncwarp();
    }
    const int first = Epilogue::shares_tiles ? static_cast<int>(*from) : work.part() * k_tiles;
    const auto k = cute::make_coord_iterator(first, first + k_tiles);
    const auto in_matrix = cute::make_coord(cute::get<0>(tile), cute::get<1>(tile), cute::_, 0);
    if (!params.pieces.any())
      Base::load(params, pipeline, write, inputs, in_matrix, k, k_tiles, lane, rank_in_cluster, shared);
    else
      load_pieces(params, pipeline, write, inputs, in_matrix, k, k_tiles, rank_in_cluster, shared);
  }

  /// Called by the parts warp for each work.
  template <class Inputs, class KIterator, class Coordinate>
  CUTLASS_DEVICE void load_auxiliary(const Params& params, Pipeline, typename Base::PipelineState,
                                     const Inputs&, const Coordinate& tile, KIterator, int, int lane,
                                     std::uint32_t, typename Base::TensorStorage& shared) {
    parts_.load(params.parts, params.watch, *epilogue_of(&shared), WorkCode{cute::get<3>(tile)},
                cute::get<0>(tile), cute::get<1>(tile), lane);
  }

  /// Bytes in shared memory from the epilogue's storage to the main loop's (checked in kernel.cuh).
  static constexpr std::size_t behind_epilogue =
      (sizeof(typename Epilogue::TensorStorage) + alignof(typename Base::TensorStorage) - 1) /
      alignof(typename Base::TensorStorage) * alignof(typename Base::TensorStorage);

 private:
  CUTLASS_DEVICE static typename Epilogue::SharedStorage* epilogue_of(typename Base::TensorStorage* shared) {
    return reinterpret_cast<typename Epilogue::SharedStorage*>(reinterpret_cast<char*>(shared) -
                                                               behind_epilogue);
  }
  CUTLASS_DEVICE static void pass_gates(const Params& params, int position) {
    const std::uint32_t epoch = *params.watch.epoch;
    for (int i = 0; i < params.gate.count; ++i)
      wait_for(params.gate.targets[position * params.gate.count + i], epoch, params.watch);
    ptx::fence_proxy_async_global();
  }

  /// As Base::load, with operands in pieces: rows of A that are apart, columns of B in halves, one of several
  /// B.
  template <class A, class B, class KIterator, class Coordinate>
  CUTLASS_DEVICE void load_pieces(const Params& params, Pipeline pipeline, typename Base::PipelineState write,
                                  const cute::tuple<A, B>& inputs, const Coordinate& tile, KIterator k,
                                  int k_tiles, std::uint32_t rank_in_cluster,
                                  typename Base::TensorStorage& shared) {
    using namespace cute;
    if (!elect_one_sync()) return;
    auto whole_a = params.tma_load_a.get_slice(0);
    auto whole_b = params.tma_load_b.get_slice(rank_in_cluster);
    Tensor smem_a = make_tensor(make_smem_ptr(shared.smem_A.data()), typename Base::SmemLayoutA{});
    Tensor smem_b = make_tensor(make_smem_ptr(shared.smem_B.data()), typename Base::SmemLayoutB{});
    Tensor from_a = whole_a.partition_S(get<0>(inputs)(_, _, get<0>(tile), _, 0));
    Tensor from_b = whole_b.partition_S(get<1>(inputs)(_, _, get<1>(tile), _, 0));
    Tensor to_a = whole_a.partition_D(smem_a);
    Tensor to_b = whole_b.partition_D(smem_b);
    const auto everyone = static_cast<std::uint16_t>((1u << size(Cluster{})) - 1);
    const int weight = params.pieces.weight_of ? params.pieces.weight_of[get<0>(tile)] : -1;
    for (int k0 = *k * depth; k_tiles > 0; --k_tiles, ++k, ++write, k0 += depth) {
      pipeline.producer_acquire(write);
      auto* barrier = pipeline.producer_get_barrier(write);
      const int stage = write.index();
      if (params.pieces.a_parts > 0)
        load_a_parts(params.pieces, barrier, shared.smem_A.begin() + stage * size<0>(TileShape{}) * depth,
                     get<0>(tile), k0);
      else
        copy(params.tma_load_a.with(*barrier, 0), from_a(_, _, _, *k), to_a(_, _, _, stage));
      if (params.pieces.b_halves)
        load_b_halves(params.pieces, barrier, shared.smem_B.begin() + stage * size<1>(TileShape{}) * depth,
                      get<1>(tile), k0, weight, rank_in_cluster);
      else
        copy(params.tma_load_b.with(*barrier, everyone), from_b(_, _, _, *k), to_b(_, _, _, stage));
    }
  }

  template <class Barrier, class Element>
  CUTLASS_DEVICE static void load_a_parts(const LoadPieces& pieces, Barrier* barrier, Element* to, int m,
                                          int k0) {
    if constexpr (k_major_a) {
      constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
      const int part_elements = pieces.part_rows * depth;
      const std::int64_t first = pieces.a_first ? pieces.a_first[m] : std::int64_t{m} * pieces.part_rows;
      for (int j = 0; j < pieces.a_parts; ++j)
        cute::SM90_TMA_LOAD_2D::copy(&pieces.a, reinterpret_cast<std::uint64_t*>(barrier), hint,
                                     to + j * part_elements, k0,
                                     static_cast<int>(first + j * pieces.a_stride));
    }
  }

  /// A tile's columns of B are two halves, with swiglu `gate | up`. A CTA alone loads both. In a cluster, the
  /// first CTA loads the first half and the second the other, each by multicast to both. `weight`: which B of
  /// a grouped product, else -1.
  template <class Barrier, class Element>
  CUTLASS_DEVICE static void load_b_halves(const LoadPieces& pieces, Barrier* barrier, Element* to, int n,
                                           int k0, int weight, std::uint32_t rank_in_cluster) {
    constexpr int half = cute::size<1>(TileShape{}) / 2;
    constexpr int width = k_major_b ? half : 64;  // columns of a box
    constexpr int cluster = cute::size(Cluster{});
    constexpr auto hint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    constexpr auto everyone = static_cast<std::uint16_t>((1u << cluster) - 1);
    auto* bar = reinterpret_cast<std::uint64_t*>(barrier);
    for (int h = cluster > 1 ? rank_in_cluster : 0;
         h < (cluster > 1 ? static_cast<int>(rank_in_cluster) + 1 : 2); ++h)
      for (int at = 0; at < half; at += width) {
        Element* into = to + (h * half + at) * depth;
        const int column = n * pieces.tile_cols + at + h * pieces.apart;
        const int x = k_major_b ? k0 : column, y = k_major_b ? column : k0;
        if constexpr (cluster > 1) {
          if (weight >= 0)
            cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&pieces.b, bar, everyone, hint, into, x, y, weight);
          else
            cute::SM90_TMA_LOAD_MULTICAST_2D::copy(&pieces.b, bar, everyone, hint, into, x, y);
        } else {
          if (weight >= 0)
            cute::SM90_TMA_LOAD_3D::copy(&pieces.b, bar, hint, into, x, y, weight);
          else
            cute::SM90_TMA_LOAD_2D::copy(&pieces.b, bar, hint, into, x, y);
        }
      }
  }

  PartsWarp<Epilogue> parts_;
};

}  // namespace shingle::cuda

template <class Base>
struct cutlass::gemm::kernel::detail::HasAuxiliaryLoad<shingle::cuda::WithPartsWarp<Base>> : cute::true_type {
};
