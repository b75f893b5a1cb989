// Tiles of products whose rows are counted at run time (CountedGemmArgs).
#pragma once

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/ptx/cluster.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "cuda/kernels/wait.cuh"

namespace shingle::cuda {

/// Finds how many rows of a cluster's tiles have a token. All warps of the cluster must get the same answer,
/// or some would wait for ever for a tile that others skip. Without gates the counts are there before the
/// kernel is. With gates a wait may be ended before its count comes. So the first warp that knows the answer
/// stores it with the epoch, and all other warps load it.
///
/// Memory order: the count is read after an acquire of the tile's gates. The answer is exchanged with acquire
/// and release, so that a warp which takes it from memory also follows these gates.
struct LiveTiles {
  const LiveRows* live;
  std::uint64_t* decided;
  GateTable gate;
  Watch watch;
  std::int32_t cluster;

  LiveTiles() = default;
  __host__ __device__ explicit LiveTiles(const CountedGemmArgs& args)
      : live(args.live),
        decided(args.decided),
        gate(args.gate),
        watch(args.watch),
        cluster(args.tile.cluster) {}

  /// Rows from the first row of the cluster's first tile on. -1: the gates of that tile are closed, and it
  /// does not `wait` for them.
  __device__ std::int32_t rows(std::int32_t of_cluster, bool wait) const {
    if (decided == nullptr) return counted(live[of_cluster]);
    const std::uint32_t epoch = *watch.epoch;
    const std::uint64_t seen = ptx::load_acquire_gpu(decided + of_cluster);
    if (holds(seen, epoch)) return static_cast<std::int32_t>(seen);
    bool open = true;
    for (int i = 0; i < gate.count && open; ++i) {
      const Target target = gate.targets[std::int64_t{of_cluster} * cluster * gate.count + i];
      open = wait ? wait_for(target, epoch, watch) : has_reached(target, epoch);
    }
    if (!open && !wait) return -1;
    const std::int32_t found = open ? counted(live[of_cluster]) : 0;
    const std::uint64_t word = std::uint64_t{epoch} << 32 | static_cast<std::uint32_t>(found);
    const std::uint64_t before = ptx::exchange_if_equal_gpu(decided + of_cluster, seen, word);
    return before == seen ? found : static_cast<std::int32_t>(before);
  }

  /// Rows of one tile, at least 0, once those of its cluster are known.
  __device__ static std::int32_t rows_of_tile(const CountedGemmArgs& args, std::int32_t position) {
    const std::int32_t cluster = args.tile.cluster, of_cluster = position / cluster;
    const std::int32_t rows =
        args.decided == nullptr ? counted(args.live[of_cluster])
                                : static_cast<std::int32_t>(ptx::load_acquire_gpu(args.decided + of_cluster));
    return max(rows - position % cluster * args.part_rows, 0);
  }

  __device__ static std::int32_t counted(const LiveRows& of) {
    const std::int32_t count = of.count == nullptr ? 0
                                                   : static_cast<std::int32_t>(ptx::load_relaxed_sys(
                                                         reinterpret_cast<const std::uint32_t*>(of.count)));
    return max(count - of.before, 0);
  }
  /// What counts the rows of a cluster.
  __device__ LiveRows counter(std::int32_t of_cluster) const {
    const int4 words = __ldg(reinterpret_cast<const int4*>(live) + of_cluster);
    LiveRows of;
    static_assert(sizeof of == sizeof words);
    memcpy(&of, &words, sizeof of);
    return of;
  }

 private:
  /// No epoch has words whose low half is negative: words start as such.
  __device__ static bool holds(std::uint64_t word, std::uint32_t epoch) {
    return word >> 32 == epoch && static_cast<std::int32_t>(word) >= 0;
  }
};

/// Clusters of tiles with live rows that are dealt to one cluster of CTAs, where all counts are there before
/// the kernel is. All that have live rows are dealt in turn: wherever they are in the order, each cluster of
/// CTAs gets as many as any other, or one less. In memory that a CTA shares. The CTAs of a cluster take the
/// list of the first of them, as they load their tiles together.
///
/// After a wait that was ended, a late peer may still store a count while CTAs look at it. Tiles and notifies
/// may then be missing, or be made twice. But all warps of a cluster go through the same tiles, so the kernel
/// ends.
struct DealtTiles {
  static constexpr std::int32_t most = 512, most_clusters = 1 << 16, most_warps = 16;
  static constexpr std::int32_t looks = 4;  ///< loads of counts that a lane has in flight

  std::int32_t count;                      ///< of `dealt`
  std::uint8_t found[looks * most_warps];  ///< live clusters among the 32 of each look and warp
  std::uint16_t dealt[most];

  /// True if the clusters of a product's tiles can be dealt so. Otherwise CTA c has works c, c + ctas, ...
  static constexpr bool suits(const CountedGemmArgs& args) {
    const std::int32_t cluster = args.tile.cluster, clusters = args.positions / cluster;
    return args.decided == nullptr && clusters <= most_clusters && clusters <= most * (args.ctas / cluster);
  }

  /// Called by all threads of the CTA. Also makes the CTA's share of the notifies of tiles without live rows.
  __device__ void deal(const LiveTiles& tiles, std::int32_t works, const NotifyTable& notify) {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
    const std::int32_t warps = static_cast<std::int32_t>(blockDim.x) / 32;
    const std::int32_t hands = static_cast<std::int32_t>(gridDim.x) / tiles.cluster;
    const std::int32_t own = static_cast<std::int32_t>(blockIdx.x) / tiles.cluster;
    const std::int32_t clusters = works / tiles.cluster;
    std::int32_t before = 0;  // clusters with live rows
    for (std::int32_t first = 0; first < clusters; first += looks * warps * 32) {
      const auto looked_at = [&](int look) { return first + (look * warps + warp) * 32 + lane; };
      LiveRows of[looks];
      std::int32_t counts[looks] = {};
      unsigned lives[looks];
#pragma unroll
      for (int look = 0; look < looks; ++look)
        of[look] = looked_at(look) < clusters ? tiles.counter(looked_at(look)) : LiveRows{};
#pragma unroll
      for (int look = 0; look < looks; ++look)
        if (of[look].count != nullptr) counts[look] = *of[look].count;
#pragma unroll
      for (int look = 0; look < looks; ++look)
        lives[look] = __ballot_sync(~0u, of[look].count != nullptr && counts[look] > of[look].before);
      if (first > 0) __syncthreads();  // all warps have read `found`
#pragma unroll
      for (int look = 0; look < looks; ++look)
        if (lane == 0) found[look * warps + warp] = static_cast<std::uint8_t>(__popc(lives[look]));
      __syncthreads();
      const Sums sums(found, looks * warps, lane);
#pragma unroll
      for (int look = 0; look < looks; ++look) {
        const std::int32_t at = looked_at(look);
        const unsigned own_lane = 1u << lane;
        const std::int32_t turn =
            before + sums.of_first(look * warps + warp) + __popc(lives[look] & (own_lane - 1));
        if ((lives[look] & own_lane) != 0) {
          if (turn % hands == own) dealt[turn / hands] = static_cast<std::uint16_t>(at);
        } else if (at < clusters && at % hands == own) {
          add_notifies(notify, work(tiles, at));
        }
      }
      before += sums.of_first(looks * warps);
    }
    if (threadIdx.x == 0) count = (before - own + hands - 1) / hands;
    __syncthreads();
  }
  /// Called by all threads of the CTA, between two barriers of the cluster: takes what its first CTA has.
  __device__ void copy_first() {
    auto* const words = reinterpret_cast<std::uint32_t*>(this);
    for (auto i = threadIdx.x; i < sizeof *this / sizeof *words; i += blockDim.x)
      words[i] = ptx::load_in_cluster(words + i, 0);
    __syncthreads();
  }
  /// Work i of this CTA; `works` if it has no more.
  __device__ std::int32_t at(const LiveTiles& tiles, std::int32_t i, std::int32_t works) const {
    return i < count ? work(tiles, dealt[i]) : works;
  }

  /// Makes the notifies of a work.
  __device__ static void add_notifies(const NotifyTable& notify, std::int32_t work) {
    std::uint32_t* const* const counters = notify.counters + std::int64_t{work} * notify.count;
    for (int i = 0; i < notify.count; ++i)
      if (counters[i] != nullptr) add_release(counters[i], 1, notify.system);
  }

 private:
  /// Sums of the first values of a list, by a scan of a warp: lane i keeps those of i + 1 and i + 33 values.
  class Sums {
   public:
    __device__ Sums(const std::uint8_t* values, std::int32_t values_count, std::int32_t lane)
        : low_(lane < values_count ? values[lane] : 0),
          high_(32 + lane < values_count ? values[32 + lane] : 0) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const std::int32_t low = __shfl_up_sync(~0u, low_, step), high = __shfl_up_sync(~0u, high_, step);
        if (lane >= step) low_ += low, high_ += high;
      }
      high_ += __shfl_sync(~0u, low_, 31);
    }
    /// `n`: at most 64, the same in all lanes.
    __device__ std::int32_t of_first(std::int32_t n) const {
      const std::int32_t sum = __shfl_sync(~0u, n <= 32 ? low_ : high_, (n - 1) % 32);
      return n == 0 ? 0 : sum;
    }

   private:
    std::int32_t low_, high_;
  };
  static_assert(looks * most_warps <= 64, "values of Sums");

  __device__ static std::int32_t work(const LiveTiles& tiles, std::int32_t of_cluster) {
    return of_cluster * tiles.cluster + static_cast<std::int32_t>(blockIdx.x) % tiles.cluster;
  }
};

}  // namespace shingle::cuda
