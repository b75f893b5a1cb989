// Tiles of products whose rows are counted at run time (CountedGemmArgs).
#pragma once

#include "cuda/kernels/gemm.hpp"
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
  explicit LiveTiles(const CountedGemmArgs& args)
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

 private:
  /// No epoch has words whose low half is negative: words start as such.
  __device__ static bool holds(std::uint64_t word, std::uint32_t epoch) {
    return word >> 32 == epoch && static_cast<std::int32_t>(word) >= 0;
  }
};

}  // namespace shingle::cuda
