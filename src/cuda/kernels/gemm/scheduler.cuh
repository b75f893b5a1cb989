// Tile scheduler of the sm90 GEMM: a table in the order of the plan's grid, dealt to the CTAs in turn.
#pragma once

#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include "split.cuh"

namespace shingle::cuda {

/// Tag that selects TableScheduler in CUTLASS's kernel layer.
struct TableOrder {};

/// CTA c computes works c, c + grid, …. A work is a position, or one split-K part of it (SplitOrder). The
/// CTAs of a cluster have consecutive positions, so the table must keep a cluster's tiles together. The
/// work's index travels as the tile's batch coordinate. The interface to the kernel layer is inherited.
class TableScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  struct Arguments : Base::Arguments {
    const TileAt* order = nullptr;
    std::int32_t works = 0;
    SplitOrder split;
  };
  struct Params : Base::Params {
    const TileAt* order = nullptr;
    std::int32_t works = 0;
    SplitOrder split;
  };

  template <class Problem, class Tile, class Cluster>
  static Params to_underlying_arguments(Problem problem, Tile tile, Cluster cluster,
                                        const cutlass::KernelHardwareInfo& hardware, const Arguments& args,
                                        void* = nullptr, std::uint32_t = 1, std::uint32_t = 1) {
    return {Base::to_underlying_arguments(problem, tile, cluster, hardware, args), args.order, args.works,
            args.split};
  }

  CUTLASS_DEVICE explicit TableScheduler(const Params& params)
      : params_(params),
        work_(static_cast<std::int32_t>(blockIdx.x)),
        ahead_by_(stride()),
        current_(at(work_)),
        ahead_(at(work_ + stride())) {}

  CUTLASS_DEVICE WorkTileInfo get_current_work() const {
    if (work_ >= params_.works) return WorkTileInfo::invalid_work_tile();
    return {current_.m, current_.n, work_, true};
  }
  template <class Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) const {
    return get_current_work();
  }
  /// Loads the coordinates one tile ahead, which hides the latency of the table.
  CUTLASS_DEVICE void advance_to_next_work(std::uint32_t count = 1) {
    const std::int32_t step = stride() * static_cast<std::int32_t>(count);
    work_ += step;
    current_ = step == ahead_by_ ? ahead_ : at(work_);
    ahead_by_ = step;
    ahead_ = at(work_ + step);
  }
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }
  template <class Pipeline, class State>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work, Pipeline&, State) {
    return fetch_next_work(work);
  }

 private:
  CUTLASS_DEVICE static std::int32_t stride() { return static_cast<std::int32_t>(gridDim.x); }
  CUTLASS_DEVICE TileAt at(std::int32_t work) const {
    if (work >= params_.works) return {};
    const int2 tile = __ldg(reinterpret_cast<const int2*>(params_.order) + params_.split.position(work));
    return {tile.x, tile.y};
  }

  const Params& params_;  // the kernel's own copy, so that it takes no registers from the MMA warps
  std::int32_t work_;
  std::int32_t ahead_by_;  // works from the current tile to the one loaded ahead
  TileAt current_, ahead_;
};

}  // namespace shingle::cuda

template <class Arch, class Tile, class Cluster, std::uint32_t Stages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<shingle::cuda::TableOrder, Arch, Tile, Cluster,
                                                            Stages> {
  using Scheduler = shingle::cuda::TableScheduler;
};
