// Tile-by-tile passes: a pipeline of three roles in each persistent CTA. Phases of a tile, by role:
//
//   - Scheduler warp: takes the next item, statically or from the work queue. It awaits the tile's gates and
//     posts the tile to a slot of a ring of two.
//   - Copy warps: load the tile's chunks from all sources, sum, finish, and store to all destinations.
//   - Notify warp: when all copy warps have finished a tile, notifies its counters and frees its slot. In
//     passes without notifies, bulk copies of the tile may still be in flight then.
//
// So gates and notifies do not delay the copy warps. A tile whose gate has opened is notified even while the
// scheduler warp waits for a later gate. The scheduler warp holds one item ahead of the copy warps, which is
// free of deadlock as items depend on lower items only.
//
// Memory order, loads: the scheduler warp awaits the gate (acquire.sys) and arrives at the mbarrier `posted`
// (release, CTA); the copy warps wait there (acquire, CTA). Their loads are coherent ones, or bulk copies
// behind a proxy fence (bulk_rows.cuh).
//
// Memory order, stores: the copy warps arrive at the mbarrier `moved`; of tiles that notify, once their bulk
// copies are done. The notify warp waits there, and then adds to the counters with release at the scope of
// their readers. Barriers and release are cumulative, so each notify covers the stores of all copy warps.
//
// Memory order, slots: all lanes of the scheduler warp write TileLines, then __syncwarp() orders their stores
// before lane 0's arrival at `posted`. The racecheck of compute-sanitizer does not follow that chain, and
// reports TileLines.
//
// Assumes: warps 0 … copy_warps - 1 are copy warps. Tables and `order` are constant while the kernel runs.
// One thread loads and stores a chunk, or a piece of a row, so that `to` may be one of the sources (in
// place).
#pragma once

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/ptx/barrier.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/wait.cuh"
#include "kernels.hpp"
#include "route.cuh"

namespace shingle::cuda {

inline constexpr int ring_slots = 2;

/// A tile to move. No member has a default, because it lies in shared memory.
struct TileWork {
  TileSpot spot;
  std::int32_t rows;  ///< that exist
  std::int32_t cols;  ///< 0: a phantom, or the end of the tiles
};

/// What the scheduler warp finds out about a tile, so that copy threads need not look for each chunk. Of a
/// sum: the address of its first row at column 0, in every source and destination (null: the row has none).
/// Valid if `whole`: the tile is one piece in all of them, and its chunks are complete and aligned. Of a
/// copy: `whole` if bulk copies can move its rows.
struct TileLines {
  bool whole;
  const char* from[max_sources];
  char* to[max_sources];
};

struct TileRing {
  ptx::Barrier posted[ring_slots];
  ptx::Barrier moved[ring_slots];
  ptx::Barrier freed[ring_slots];
  TileWork work[ring_slots];
  TileLines lines[ring_slots];
};

/// The n-th use of a slot is a phase of its mbarriers.
struct Turn {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    slot = (slot + 1) % ring_slots;
    if (slot == 0) parity ^= 1;
  }
};

/// The next item, or `last`. A claim beyond the last item is given back. In each epoch the queue thus grows
/// by the number of items, however many kernels share it.
__device__ inline std::int64_t next_item(const ElementwiseArgs& args, std::uint32_t epoch,
                                         std::int64_t turn) {
  if (args.queue == nullptr) return min(args.first + blockIdx.x + turn * gridDim.x, args.last);
  const auto items = static_cast<std::uint32_t>(args.last - args.first);
  const std::uint32_t ticket = atomicAdd(args.queue, 1u) - (args.queue_grows ? epoch * items : 0);
  if (ticket < items) return args.first + ticket;
  atomicSub(args.queue, 1u);
  return args.last;
}

__device__ inline TileWork describe(const ElementwiseArgs& args, std::int64_t position) {
  const TileAt at = args.order[position];
  if (at.m < 0) return {{position, at.m, at.n}, 0, 0};
  const std::int64_t rows =
      min(args.rows - std::int64_t{at.m} * args.tile_rows, std::int64_t{args.tile_rows});
  return {{position, at.m, at.n},
          static_cast<std::int32_t>(max(rows, std::int64_t{0})),
          static_cast<std::int32_t>(
              min(args.cols - std::int64_t{at.n} * args.tile_cols, std::int64_t{args.tile_cols}))};
}

/// Awaits a tile's gates, one lane for each gate. Continues if the rank's waits were ended, so that counters
/// and the work queue keep their totals.
__device__ inline void await_gates(const ElementwiseArgs& args, std::int64_t position, std::uint32_t epoch,
                                   int lane) {
  for (int i = lane; i < args.gate.count; i += 32)
    wait_for(args.gate.targets[position * args.gate.count + i], epoch, args.watch);
  __syncwarp();  // makes acquires of all lanes visible to the lane that posts
}

/// Called by the scheduler warp.
template <class Move>
__device__ void schedule_tiles(const ElementwiseArgs& args, const Route* sources, TileRing& ring, int lane) {
  // With PDL no kernel boundary makes the epoch word visible here, so the load acquires.
  const std::uint32_t epoch = args.watch.epoch == nullptr ? 0 : ptx::load_acquire_gpu(args.watch.epoch);
  Turn turn;
  for (std::int64_t n = 0;; ++n) {
    // A slot's first use passes at once: the phase before the first counts as complete.
    ptx::barrier_wait(&ring.freed[turn.slot], turn.parity ^ 1);
    const std::int64_t item = __shfl_sync(~0u, lane == 0 ? next_item(args, epoch, n) : 0, 0);
    TileWork work{};
    if (item < args.last) {
      work = describe(args, item);
      if (work.cols == 0) continue;  // phantom
      Move::survey(args, sources, work, ring.lines[turn.slot], lane);
      await_gates(args, item, epoch, lane);
    }
    if (lane == 0) {
      ring.work[turn.slot] = work;
      ptx::barrier_arrive(&ring.posted[turn.slot]);
    }
    if (work.cols == 0) break;
    turn.next();
  }
  ptx::await_prerequisites();  // so that kernels after this one also follow the kernels before it
}

/// Called by the notify warp.
__device__ inline void notify_tiles(const ElementwiseArgs& args, TileRing& ring, int lane) {
  const NotifyTable& notify = args.notify;
  for (Turn turn;; turn.next()) {
    ptx::barrier_wait(&ring.posted[turn.slot], turn.parity);
    const TileWork work = ring.work[turn.slot];
    if (work.cols == 0) return;
    ptx::barrier_wait(&ring.moved[turn.slot], turn.parity);
    for (int i = lane; i < notify.count; i += 32) {
      std::uint32_t* const counter = notify.counters[work.spot.position * notify.count + i];
      if (counter != nullptr) add_release(counter, 1, notify.system);
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&ring.freed[turn.slot]);
  }
}

/// For the copy warps: calls visit(slot, work) for each tile in the order of posting. Until a tile is posted,
/// calls idle(), which returns false when it has no more to do.
template <class Visit, class Idle>
__device__ __forceinline__ void for_each_tile(TileRing& ring, Visit&& visit, Idle&& idle) {
  for (Turn turn;; turn.next()) {
    ptx::Barrier* const posted = &ring.posted[turn.slot];
    while (!__all_sync(~0u, ptx::barrier_test_wait(posted, turn.parity)) && idle()) {
    }
    ptx::barrier_wait(posted, turn.parity);
    const TileWork work = ring.work[turn.slot];
    if (work.cols == 0) return;
    visit(turn.slot, work);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&ring.moved[turn.slot]);
  }
}
template <class Visit>
__device__ __forceinline__ void for_each_tile(TileRing& ring, Visit&& visit) {
  for_each_tile(ring, visit, [] { return false; });
}

/// `Move::survey(args, sources, work, lines, lane)` is called by the whole scheduler warp for each tile.
/// `Move::run(args, sources, ring)` is called by the copy warps once, for all tiles.
template <class Move>
__global__ void __launch_bounds__(tile_threads, 1)
    tiles_kernel(const __grid_constant__ ElementwiseArgs args) {
  __shared__ TileRing ring;
  __shared__ Route sources[max_sources];
  load_sources(args, sources);
  if (threadIdx.x < ring_slots) {
    ptx::barrier_init(&ring.posted[threadIdx.x], 1);
    ptx::barrier_init(&ring.moved[threadIdx.x], copy_warps);
    ptx::barrier_init(&ring.freed[threadIdx.x], 1);
  }
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (warp == copy_warps) return schedule_tiles<Move>(args, sources, ring, lane);
  if (warp == copy_warps + 1) return notify_tiles(args, ring, lane);
  Move::run(args, sources, ring);
}

}  // namespace shingle::cuda
