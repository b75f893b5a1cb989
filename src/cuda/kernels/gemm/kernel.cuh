// One instance of the instrumented GEMM for compute capability 9.0: CUTLASS's kernel layer and main loop with
// our tile scheduler, gate and epilogue.
//
// Phases of a tile: the load warp awaits its gates and issues TMA loads (mainloop.cuh). The parts warp lands
// what other ranks have of a sum (parts.cuh), in kernels of GemmKind::sums. The MMA warps multiply and stage
// the sums, and the store warp stores and notifies (epilogue.cuh). Those files state the memory order.
#pragma once

#include <cstring>

#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // wgmma with 224 columns
#include <cutlass/device_kernel.h>
#include <cutlass/version.h>
#include <cutlass/epilogue/collective/collective_epilogue.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "counted_scheduler.cuh"
#include "epilogue.cuh"
#include "mainloop.cuh"
#include "scheduler.cuh"
#include "tensor_map.hpp"
#include "types.cuh"

static_assert(CUTLASS_MAJOR == 4 && CUTLASS_MINOR == 2,
              "mainloop.cuh and the schedulers lean on this version's collectives and kernel layer");

namespace shingle::cuda {

/// Pingpong: each of the two warpgroups has its own tile, so that one's epilogue overlaps the other's main
/// loop. Otherwise (cooperative) they share a tile.
template <class T, bool TransposeA, bool TransposeB, int Rows, int Cols, int ClusterRows, bool Pingpong,
          GemmKind Kind>
struct HookedGemm {
  static constexpr bool counted = Kind == GemmKind::counted;
  using Type = typename CutlassType<T>::type;
  using Tile = cute::Shape<cute::Int<Rows>, cute::Int<Cols>, cute::_64>;
  using Cluster = cute::Shape<cute::Int<ClusterRows>, cute::_1, cute::_1>;
  using LayoutA = std::conditional_t<TransposeA, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using LayoutB = std::conditional_t<TransposeB, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using Schedule = std::conditional_t<Pingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                                      cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using Epilogue = HookedCollective<T, Rows, Cols, Pingpong ? 4 : 8, Kind>;
  static constexpr std::size_t beside = counted ? sizeof(DealtTiles) : 0;  // of shared memory
  using Mainloop = HookedMainloop<typename cutlass::gemm::collective::CollectiveBuilder<
                                      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Type, LayoutA, 8,
                                      Type, LayoutB, 8, float, Tile, Cluster,
                                      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
                                          sizeof(typename Epilogue::SharedStorage) + beside)>,
                                      Schedule>::CollectiveOp,
                                  Epilogue, Kind == GemmKind::sums>;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue,
                                           std::conditional_t<counted, CountedOrder, TableOrder<Pingpong>>>;

  static constexpr std::int32_t shared_bytes = Kernel::SharedStorageSize + static_cast<std::int32_t>(beside);
  static_assert(Kernel::SharedStorageSize % alignof(DealtTiles) == 0, "where DealtTiles begin");
  static_assert(shared_bytes <= 227 * 1024, "a CTA's shared memory on compute capability 9.0");
  static_assert(Kernel::MaxThreadsPerBlock <= DealtTiles::most_warps * 32, "warps that deal tiles");

  static cudaError_t prepare(const GemmArgs& args, void* params) {
    typename Kernel::Arguments to{};
    to.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    const bool gated = args.activate == Activate::swiglu;
    const auto m = static_cast<int>(args.a_rows);
    const auto k = args.split.depth > 0 ? args.split.depth : static_cast<int>(args.k);
    const auto n = static_cast<int>(gated ? 2 * args.cols : args.cols);
    to.problem_shape = {m, n, k, 1};
    auto& load = to.mainloop;
    load.ptr_A = static_cast<const Type*>(args.a);
    load.ptr_B = static_cast<const Type*>(args.b);
    cute::get<TransposeA ? 1 : 0>(load.dA) = args.lda;
    cute::get<TransposeB ? 0 : 1>(load.dB) = args.ldb;
    load.gate = args.gate;
    load.watch = args.watch;
    load.k = static_cast<std::int32_t>(args.k);
    load.parts = {args.sums, args.rows, args.cols, args.part_rows};
    if (const cudaError_t failed = set_pieces(args, load.pieces)) return failed;
    // C has one row order, not several pieces
    if (args.c != nullptr && args.a_parts > 1) return cudaErrorInvalidValue;
    to.hw_info.sm_count = args.ctas;
    const bool sums = Kind == GemmKind::sums && !gated && args.out_type == args.type;
    if (args.sums.count > 0 && !sums) return cudaErrorInvalidValue;
    if constexpr (counted) {
      if (args.split.others > 0 || args.early || args.tile.cluster != ClusterRows)
        return cudaErrorInvalidValue;
      to.epilogue = static_cast<const CountedGemmArgs&>(args);
      to.scheduler.table = args.works;
      to.scheduler.works = args.positions;
      to.scheduler.tiles = LiveTiles(to.epilogue);
      to.scheduler.notify = args.notify;
      if (DealtTiles::suits(to.epilogue)) to.scheduler.dealt_at = Kernel::SharedStorageSize;
    } else {
      to.epilogue = args;
      to.scheduler.works = args.works;
      to.scheduler.count = args.work_count;
    }
    const typename Kernel::Params made = Kernel::to_underlying_arguments(to, nullptr);
    std::memcpy(params, &made, sizeof made);
    return cudaSuccess;
  }

  static cudaError_t rebind(const GemmArgs& args, void* params) {
    auto& to = *static_cast<typename Kernel::Params*>(params);
    const auto move = [](const auto& load, const void* base) {
      return move_tensor_map(const_cast<CUtensorMap&>(*load.get_tma_descriptor()), base);
    };
    LoadPieces& pieces = to.mainloop.pieces;
    for (const cudaError_t failed :
         {move(to.mainloop.tma_load_a, args.a), move(to.mainloop.tma_load_b, args.b),
          pieces.a_parts > 0 ? move_tensor_map(pieces.a, args.a) : cudaSuccess,
          pieces.b_halves ? move_tensor_map(pieces.b, args.b) : cudaSuccess})
      if (failed != cudaSuccess) return failed;
    to.epilogue.a = args.a;
    to.epilogue.b = args.b;
    to.epilogue.bias = args.bias;
    to.epilogue.out.shift = args.out.shift;
    to.epilogue.sums.shift = args.sums.shift;
    to.epilogue.split.sums = args.split.sums;
    return cudaSuccess;
  }

  static cudaError_t launch(const void* params, std::int32_t ctas, cudaStream_t stream) {
    const auto& at = *static_cast<const typename Kernel::Params*>(params);
    if (ctas % ClusterRows != 0) return cudaErrorInvalidValue;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ctas));
    config.blockDim = dim3(Kernel::MaxThreadsPerBlock);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {ClusterRows, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = at.epilogue.early ? 2 : 1;
    return cudaLaunchKernelEx(&config, cutlass::device_kernel<Kernel>, at);
  }

  static cudaError_t load() {
    return cudaFuncSetAttribute(cutlass::device_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_bytes);
  }

  static GemmInstance instance() {
    static_assert(sizeof(typename Kernel::Params) <= most_params_bytes, "a kernel's parameters");
    using Tensors = typename Kernel::SharedStorage::TensorStorage;
    static_assert(offsetof(Tensors, mainloop) - offsetof(Tensors, epilogue) == Mainloop::behind_epilogue,
                  "where the parts warp finds the staged tile");
    return {{Rows, Cols, ClusterRows},
            CutlassType<T>::element,
            TransposeA,
            TransposeB,
            counted    ? KSplit::none
            : Pingpong ? KSplit::all
                       : KSplit::some,
            static_cast<std::int32_t>(Kernel::MaxThreadsPerBlock),
            shared_bytes,
            static_cast<std::int32_t>(sizeof(typename Kernel::Params)),
            &prepare,
            &rebind,
            &launch,
            &load};
  }

 private:
  static cudaError_t set_pieces(const GemmArgs& args, LoadPieces& pieces) {
    constexpr int depth = cute::size<2>(Tile{});
    if (args.a_parts > 1 || args.part_rows != Rows || args.a_first != nullptr) {
      if (TransposeA) return cudaErrorInvalidValue;
      pieces.a_parts = args.a_parts;
      pieces.part_rows = args.part_rows;
      pieces.a_stride = args.a_stride;
      pieces.a_first = args.a_first;
      const MatrixBox box{args.a, args.a_rows, args.k, args.lda, pieces.part_rows, depth};
      if (const cudaError_t failed = encode_tensor_map(box, pieces.a)) return failed;
    }
    const bool gated = args.activate == Activate::swiglu, grouped = args.weight_of != nullptr;
    if (!gated && !grouped) return cudaSuccess;
    // each half is loaded in boxes of 64 columns
    if (!TransposeB && Cols % 128 != 0) return cudaErrorInvalidValue;
    pieces.b_halves = true;
    pieces.apart = gated ? static_cast<std::int32_t>(args.cols) : Cols / 2;
    pieces.tile_cols = gated ? Cols / 2 : Cols;
    pieces.weight_of = args.weight_of;
    const std::int64_t cols = (gated ? 2 : 1) * args.cols;
    MatrixBox box = TransposeB ? MatrixBox{args.b, cols, args.k, args.ldb, Cols / 2, depth}
                               : MatrixBox{args.b, args.k, cols, args.ldb, depth, 64};
    if (grouped) box.stacked = args.weights;
    return encode_tensor_map(box, pieces.b);
  }
};

}  // namespace shingle::cuda
