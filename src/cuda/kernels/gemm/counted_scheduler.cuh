// Tile scheduler of the sm90 GEMM for products whose rows are counted at run time: it skips tiles without
// live rows.
#pragma once

#include <cutlass/gemm/kernel/tile_scheduler.hpp>

#include "live.cuh"

namespace shingle::cuda {

/// Tag that selects CountedScheduler in CUTLASS's kernel layer.
struct CountedOrder {};

/// As TableScheduler, without split-K. Where all counts are there before the kernel is, each CTA begins with
/// a look at all of them, and has its share of the works with live rows (DealtTiles).
///
/// With gates, every warp goes through all works of its CTA by itself, and takes those with live rows. Its
/// lanes look at as many works at once, since to look at one takes as long. The store warp also makes the
/// notifies of the tiles that it skips. A warp waits for the gates of a work when it asks whether it
/// `is_valid()`: not before, as the kernel layer asks for the second warpgroup's first work before the CTA's
/// first tile may begin. So the scheduler only counts how many works are due, and a warp's WorkTileInfo finds
/// them.
class CountedScheduler : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  struct Arguments : Base::Arguments {
    const GemmWork* table = nullptr;
    std::int32_t works = 0;
    LiveTiles tiles{};
    NotifyTable notify{};
    /// Where DealtTiles begin in the CTA's dynamic shared memory. 0: tiles are not dealt there.
    std::int32_t dealt_at = 0;
  };
  struct Params : Base::Params {
    const GemmWork* table = nullptr;
    std::int32_t works = 0;
    LiveTiles tiles{};
    NotifyTable notify{};
    std::int32_t dealt_at = 0;
  };

  /// The work that a warp is at. To assign another one makes further works due; all else stays.
  class WorkTileInfo : public Base::WorkTileInfo {
   public:
    WorkTileInfo() = default;
    CUTLASS_DEVICE WorkTileInfo(const Params& params, std::int32_t due)
        : params_(&params), due_(due), next_(first(params)) {}
    WorkTileInfo(const WorkTileInfo&) = default;
    CUTLASS_DEVICE WorkTileInfo& operator=(const WorkTileInfo& other) {
      if (params_ == nullptr) next_ = first(*other.params_);
      params_ = other.params_;
      due_ += other.due_;
      return *this;
    }
    /// Called by all lanes of a warp.
    CUTLASS_DEVICE bool is_valid() {
      for (; due_ > 0; --due_) take();
      return is_valid_tile;
    }

   private:
    static constexpr int store_warp = 2;  // of the kernel layer: the one for epilogue loads

    /// Goes on to the next work with live rows, or beyond the last work.
    CUTLASS_DEVICE void take() {
      if (params_->dealt_at > 0) return go_to(dealt(*params_).at(params_->tiles, next_++, params_->works));
      for (;;) {
        if ((known_ & 1) == 0) look();
        const int dead = dead_ == ~0u ? 32 : __ffs(static_cast<int>(~dead_)) - 1;
        if (threadIdx.x / 32 == store_warp) notify_first(dead);
        pass(dead);
        if ((known_ & 1) != 0) break;
      }
      go_to(next_);
      pass(1);
    }
    CUTLASS_DEVICE void go_to(std::int32_t work) {
      L_idx = work;
      is_valid_tile = work < params_->works;
      if (!is_valid_tile) return;
      const PackedTile tile{__ldg(&params_->table[L_idx].tile.bits)};
      M_idx = tile.m(), N_idx = tile.n();
    }
    /// Looks at the next works, one in each lane. Waits until something is known of the first.
    CUTLASS_DEVICE void look() {
      const std::int32_t work = next_ + lane() * stride();
      const LiveTiles& tiles = params_->tiles;
      const std::int32_t rows = work < params_->works ? tiles.rows(work / tiles.cluster, lane() == 0) : 1;
      known_ = __ballot_sync(~0u, rows >= 0);
      dead_ = __ballot_sync(~0u, rows == 0);
    }
    /// The notifies of the next `count` works.
    CUTLASS_DEVICE void notify_first(int count) const {
      if (lane() < count) DealtTiles::add_notifies(params_->notify, next_ + lane() * stride());
    }
    CUTLASS_DEVICE void pass(int count) {
      next_ += count * stride();
      known_ = count == 32 ? 0 : known_ >> count;
      dead_ = count == 32 ? 0 : dead_ >> count;
    }
    CUTLASS_DEVICE static std::int32_t first(const Params& params) {
      return params.dealt_at > 0 ? 0 : static_cast<std::int32_t>(blockIdx.x);
    }
    CUTLASS_DEVICE static std::int32_t lane() { return static_cast<std::int32_t>(threadIdx.x) % 32; }
    CUTLASS_DEVICE static std::int32_t stride() { return static_cast<std::int32_t>(gridDim.x); }

    const Params* params_ = nullptr;      // the kernel's own copy, which takes no registers
    std::int32_t due_ = 0;                // works to take
    std::int32_t next_ = 0;               // the work after the last one taken or skipped; dealt: its number
    std::uint32_t known_ = 0, dead_ = 0;  // bit i: of work next_ + i · stride()
  };

  template <class Problem, class Tile, class Cluster>
  static Params to_underlying_arguments(Problem problem, Tile tile, Cluster cluster,
                                        const cutlass::KernelHardwareInfo& hardware, const Arguments& args,
                                        void* = nullptr, std::uint32_t = 1, std::uint32_t = 1) {
    return {Base::to_underlying_arguments(problem, tile, cluster, hardware, args),
            args.table,
            args.works,
            args.tiles,
            args.notify,
            args.dealt_at};
  }

  /// Called by all threads of the CTA, between the kernel layer's arrival at the cluster's first barrier and
  /// its wait there.
  CUTLASS_DEVICE explicit CountedScheduler(const Params& params) : params_(params) {
    if (params.dealt_at == 0) return;
    dealt(params).deal(params.tiles, params.works, params.notify);
    if (params.tiles.cluster == 1) return;
    ptx::cluster_wait();  // the kernel layer has arrived, and waits after this
    ptx::cluster_arrive(), ptx::cluster_wait();
    if (ptx::cluster_rank() > 0) dealt(params).copy_first();
    ptx::cluster_arrive();
  }

  CUTLASS_DEVICE WorkTileInfo get_current_work() {
    const std::int32_t due = due_;
    due_ = 0;
    return {params_, due};
  }
  template <class Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) {
    return get_current_work();
  }
  CUTLASS_DEVICE void advance_to_next_work(std::uint32_t count = 1) {
    due_ += static_cast<std::int32_t>(count);
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
  /// Behind the kernel layer's shared memory, whose begin must stay where it is: TMA and wgmma need the
  /// alignment that it has.
  CUTLASS_DEVICE static DealtTiles& dealt(const Params& params) {
    extern __shared__ char shared[];
    return *reinterpret_cast<DealtTiles*>(shared + params.dealt_at);
  }

  const Params& params_;
  std::int32_t due_ = 1;  // works to take beyond those that get_current_work() has told of
};

}  // namespace shingle::cuda

template <class Arch, class Tile, class Cluster, std::uint32_t Stages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<shingle::cuda::CountedOrder, Arch, Tile, Cluster,
                                                            Stages> {
  using Scheduler = shingle::cuda::CountedScheduler;
};
