// Passes tile by tile, as a pipeline of three roles in each persistent CTA:
//
//   scout   one warp: takes the next item (dealt out, or claimed from the queue), waits for the tile's gates,
//           and posts the tile to a slot of a ring of two;
//   movers  `movers` threads: load the tile's chunks from all sources, sum, finish, store to all
//   destinations; herald  one warp: when all movers are done with a tile, counts it and frees its slot.
//
// So neither a gate nor a count is in the movers' way, and a tile whose gate has opened is counted whatever
// the scout waits for next: it holds one item ahead of the movers, which depends on lower items only.
//
// Memory order: gate (acquire.sys by the scout) → `posted` (mbarrier, release and acquire in the CTA) →
// movers' loads, which are coherent ones; movers' stores → `moved` → the herald's release-add at the scope of
// its readers. Barriers and release are cumulative, so that each count covers the stores of all movers.
//
// Assumes: warps 0 … movers/32 - 1 are movers; tables and `order` are constant while the kernel runs; a chunk
// is moved by one thread, so that `to` may be a source in place.
#pragma once

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/ptx/barrier.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/wait.cuh"
#include "kernels.hpp"
#include "route.cuh"

namespace shingle::cuda {

inline constexpr int ring_slots = 2;

/// A tile to move; no rows: the end.
struct TileWork {
  TileSpot spot;
  std::int32_t rows;
  std::int32_t cols;
};

/// Where a tile's first row lies, at its column 0, in every source and at every destination (null: it goes
/// nowhere), where that says it all: it is one piece of each, and its chunks are whole and aligned. The scout
/// finds out, so that movers do not for each chunk.
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

/// The n-th turn of a slot is a phase of its barriers.
struct Turn {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    slot = (slot + 1) % ring_slots;
    if (slot == 0) parity ^= 1;
  }
};

/// The next item, or `last`. An item that is claimed in vain is given back: the queue grows by exactly the
/// items an epoch, whoever shares it.
__device__ inline std::int64_t next_item(const ElementwiseArgs& args, std::uint32_t epoch,
                                         std::int64_t turn) {
  if (args.queue == nullptr) return min(args.first + blockIdx.x + turn * gridDim.x, args.last);
  const auto items = static_cast<std::uint32_t>(args.last - args.first);
  const std::uint32_t ticket = atomicAdd(args.queue, 1u) - epoch * items;
  if (ticket < items) return args.first + ticket;
  atomicSub(args.queue, 1u);
  return args.last;
}

__device__ inline TileWork describe(const ElementwiseArgs& args, std::int64_t position) {
  const TileAt at = args.order[position];
  if (at.m < 0) return {{position, at.m, at.n}, 0, 0};
  return {{position, at.m, at.n},
          static_cast<std::int32_t>(
              min(args.rows - std::int64_t{at.m} * args.tile_rows, std::int64_t{args.tile_rows})),
          static_cast<std::int32_t>(
              min(args.cols - std::int64_t{at.n} * args.tile_cols, std::int64_t{args.tile_cols}))};
}

/// Waits for a tile's gates, a lane for each. Where the rank's waits were ended it goes on all the same: what
/// is counted, and claimed of the queue, stays whole.
__device__ inline void await_gates(const ElementwiseArgs& args, std::int64_t position, std::uint32_t epoch,
                                   int lane) {
  for (int i = lane; i < args.gate.count; i += 32)
    wait_for(args.gate.targets[position * args.gate.count + i], epoch, args.watch);
  __syncwarp();  // what one lane acquired, the lane that posts has seen
}

template <class Move>
__device__ void scout(const ElementwiseArgs& args, const Route* sources, TileRing& ring, int lane) {
  // Where nothing orders the kernel behind the one that began the epoch, this load has to find it in memory.
  const std::uint32_t epoch = args.watch.epoch == nullptr ? 0 : ptx::load_acquire_gpu(args.watch.epoch);
  Turn turn;
  for (std::int64_t n = 0;; ++n) {
    ptx::barrier_wait(&ring.freed[turn.slot],
                      turn.parity ^ 1);  // a new barrier's phase before the first is over
    const std::int64_t item = __shfl_sync(~0u, lane == 0 ? next_item(args, epoch, n) : 0, 0);
    TileWork work{};
    if (item < args.last) {
      work = describe(args, item);
      if (work.rows == 0) continue;  // phantom
      Move::survey(args, sources, work, ring.lines[turn.slot], lane);
      await_gates(args, item, epoch, lane);
    }
    if (lane == 0) {
      ring.work[turn.slot] = work;
      ptx::barrier_arrive(&ring.posted[turn.slot]);
    }
    if (work.rows == 0) break;
    turn.next();
  }
  ptx::await_prerequisites();  // what follows this kernel follows those before it
}

__device__ inline void herald(const ElementwiseArgs& args, TileRing& ring, int lane) {
  const NotifyTable& notify = args.notify;
  for (Turn turn;; turn.next()) {
    ptx::barrier_wait(&ring.posted[turn.slot], turn.parity);
    const TileWork work = ring.work[turn.slot];
    if (work.rows == 0) return;
    ptx::barrier_wait(&ring.moved[turn.slot], turn.parity);
    for (int i = lane; i < notify.count; i += 32) {
      std::uint32_t* const counter = notify.counters[work.spot.position * notify.count + i];
      if (counter != nullptr) add_release(counter, 1, notify.system);
    }
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(&ring.freed[turn.slot]);
  }
}

/// By the movers: visit(slot, work) for tile after tile, as the scout posts them.
template <class Visit>
__device__ __forceinline__ void for_each_tile(TileRing& ring, Visit&& visit) {
  for (Turn turn;; turn.next()) {
    ptx::barrier_wait(&ring.posted[turn.slot], turn.parity);
    const TileWork work = ring.work[turn.slot];
    if (work.rows == 0) return;
    visit(turn.slot, work);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&ring.moved[turn.slot]);
  }
}

/// `Move::survey(args, sources, work, lines, lane)` is what the scout, a whole warp, finds out of a tile;
/// `Move::run(args, sources, ring)` is what the movers do with all of them.
template <class Move>
__global__ void __launch_bounds__(tile_threads, 1)
    tiles_kernel(const __grid_constant__ ElementwiseArgs args) {
  __shared__ TileRing ring;
  __shared__ Route sources[max_sources];
  for (int i = static_cast<int>(threadIdx.x); i < args.source_count; i += tile_threads)
    sources[i] = args.sources[i];
  if (threadIdx.x < ring_slots) {
    ptx::barrier_init(&ring.posted[threadIdx.x], 1);
    ptx::barrier_init(&ring.moved[threadIdx.x], movers / 32);
    ptx::barrier_init(&ring.freed[threadIdx.x], 1);
  }
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (warp == movers / 32) return scout<Move>(args, sources, ring, lane);
  if (warp == movers / 32 + 1) return herald(args, ring, lane);
  Move::run(args, sources, ring);
}

}  // namespace shingle::cuda
