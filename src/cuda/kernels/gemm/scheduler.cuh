// Tile scheduler of the sm90 GEMM: a table of works in the order of the plan's grid.
#pragma once

#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include "cuda/kernels/gemm.hpp"

namespace shingle::cuda {

/// Tag that selects TableScheduler in CUTLASS's kernel layer. Alike: all works are equally deep.
template <bool Alike>
struct TableOrder {};

/// CTA c computes works c, c + grid, … of a table. The CTAs of a cluster have works of consecutive positions
/// and the same part of K, which the table must keep together. The interface to the kernel layer is
/// inherited.
///
/// Ping-pong kernels take only works that are alike. They find K in mainloop.cuh, and have no registers left
/// for it here.
template <bool Alike>
class TableScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  struct Arguments : Base::Arguments {
    const GemmWork* works = nullptr;
    std::int32_t count = 0;
  };
  struct Params : Base::Params {
    const GemmWork* works = nullptr;
    std::int32_t count = 0;
  };
  struct DeepTileInfo : Base::WorkTileInfo {
    KSteps steps;
  };
  using WorkTileInfo = std::conditional_t<Alike, typename Base::WorkTileInfo, DeepTileInfo>;

  template <class Problem, class Tile, class Cluster>
  static Params to_underlying_arguments(Problem problem, Tile tile, Cluster cluster,
                                        const cutlass::KernelHardwareInfo& hardware, const Arguments& args,
                                        void* = nullptr, std::uint32_t = 1, std::uint32_t = 1) {
    return {Base::to_underlying_arguments(problem, tile, cluster, hardware, args), args.works, args.count};
  }
  template <class Problem, class Tile>
  CUTLASS_DEVICE static std::int32_t get_work_k_tile_count(const DeepTileInfo& work, const Problem&, Tile) {
    return work.steps.count();
  }
  CUTLASS_DEVICE static std::int32_t get_work_k_tile_start(const DeepTileInfo& work) {
    return work.steps.first();
  }

  CUTLASS_DEVICE explicit TableScheduler(const Params& params)
      : params_(params),
        work_(static_cast<std::int32_t>(blockIdx.x)),
        ahead_by_(stride()),
        current_(at(work_)),
        ahead_(at(work_ + stride())) {}

  CUTLASS_DEVICE WorkTileInfo get_current_work() const {
    const typename Base::WorkTileInfo work{current_.tile.m(), current_.tile.n(), current_.code.bits,
                                           current_.code.bits >= 0};
    if constexpr (Alike)
      return work;
    else
      return {work, current_.steps};
  }
  template <class Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) const {
    return get_current_work();
  }
  /// Loads the table one work ahead, which hides its latency.
  CUTLASS_DEVICE void advance_to_next_work(std::uint32_t count = 1) {
    const std::int32_t step = stride() * static_cast<std::int32_t>(count);
    work_ += step;
    current_ = step == ahead_by_ ? ahead_ : at(work_);
    ahead_by_ = step;
    ahead_ = at(work_ + step);
  }
  CUTLASS_DEVICE auto fetch_next_work(const WorkTileInfo&) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }
  template <class Pipeline, class State>
  CUTLASS_DEVICE auto fetch_next_work(const WorkTileInfo& work, Pipeline&, State) {
    return fetch_next_work(work);
  }

 private:
  CUTLASS_DEVICE static std::int32_t stride() { return static_cast<std::int32_t>(gridDim.x); }
  CUTLASS_DEVICE GemmWork at(std::int32_t work) const {
    if (work >= params_.count) return {};
    const int4 words = __ldg(reinterpret_cast<const int4*>(params_.works) + work);
    return {{static_cast<std::uint32_t>(words.x)}, {words.y}, {static_cast<std::uint32_t>(words.z)}};
  }

  const Params& params_;  // the kernel's own copy, so that it takes no registers from the MMA warps
  std::int32_t work_;
  std::int32_t ahead_by_;  // works from the current one to the one loaded ahead
  GemmWork current_, ahead_;
};

}  // namespace shingle::cuda

template <bool Alike, class Arch, class Tile, class Cluster, std::uint32_t Stages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<shingle::cuda::TableOrder<Alike>, Arch, Tile,
                                                            Cluster, Stages> {
  using Scheduler = shingle::cuda::TableScheduler<Alike>;
};
