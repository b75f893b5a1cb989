// Sums of own tiles with the parts of other ranks (GemmSums), sm90. Parts land in the epilogue's staged tile
// while the tile is multiplied, and the MMA warps add them to their registers.
//
// Phases of a tile that is a sum:
//
//   1. The parts warp waits until the tile before is stored, as the staged tile's memory is then free. It
//      arrives at `emptied` once for each tile, as the store warp does, so that it is never lapped. It
//      awaits the gate and starts to copy the first part there; the copies arrive at the mbarrier `landed`.
//      It is the warp that CUTLASS's kernel layer has for auxiliary loads of the main loop (mainloop.cuh), as
//      the store warp has no registers left.
//   2. The MMA warps wait for `landed` once they have multiplied, and add. Each warp reads the places that it
//      stages itself later.
//   3. They arrive at the mbarrier `taken`, and the parts warp copies the next part.
//
// If CTAs share the tile (split-K), the MMA warps use the staged tile before. They then arrive at `taken`
// once more, before the first part.
//
// Ping-pong kernels have one pair of mbarriers for each warpgroup: a warpgroup does not know how many sums
// the other one has.
//
// Copies are of 16 bytes. Bulk copies of single rows take several times as long, and delay the main loop's
// loads.
//
// Memory order: wait_for() by some lanes of the parts warp, then __syncwarp. Each lane's copies arrive at
// `landed` once they are done (release, CTA), where the MMA warps wait (acquire, CTA).
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/kernels/ptx/barrier.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "cuda/kernels/ptx/shared.cuh"
#include "cuda/kernels/wait.cuh"
#include "split.cuh"
#include "staged_tile.cuh"

namespace shingle::cuda {

/// What the parts warp needs to know of the product.
struct PartsArgs {
  GemmSums sums;
  std::int64_t rows = 0, cols = 0;  ///< of the grid
  std::int32_t part_rows = 0;       ///< rows of a tile in the grid
};

/// Mbarriers of a tile's parts, by warpgroup in a ping-pong kernel.
struct PartsBarriers {
  ptx::Barrier landed[2];
  ptx::Barrier taken[2];

  /// Called by one thread before the kernel's fence of mbarriers.
  CUTLASS_DEVICE void open(std::uint32_t threads) {
    for (int slot = 0; slot < 2; ++slot)
      ptx::barrier_init(&landed[slot], 32), ptx::barrier_init(&taken[slot], threads);
  }
};

/// A thread's count of the phases that it has waited for, modulo two, of one mbarrier for each slot.
class SlotParities {
 public:
  CUTLASS_DEVICE std::uint32_t next(int slot) {
    const std::uint32_t parity = bits_ >> slot & 1;
    bits_ ^= 1u << slot;
    return parity;
  }

 private:
  std::uint32_t bits_ = 0;
};

/// Called by the MMA warps: adds all parts to the sums of a tile. `slot`: their warpgroup in a ping-pong
/// kernel, else 0. `shared`: whether CTAs share the tile.
template <class Staged, class Sums>
CUTLASS_DEVICE void add_parts(PartsBarriers& barriers, SlotParities& landings, const Staged& staged,
                              Sums& sums, int thread, int slot, bool shared) {
  const GemmArgs& args = staged.output.args;
  if (shared) ptx::barrier_arrive(&barriers.taken[slot]);
  CUTLASS_PRAGMA_NO_UNROLL
  for (int part = 0; part < args.sums.count; ++part) {
    ptx::barrier_wait(&barriers.landed[slot], landings.next(slot));
    staged.add_staged(sums, thread);
    if (part + 1 < args.sums.count) ptx::barrier_arrive(&barriers.taken[slot]);
  }
}

/// The parts warp of an epilogue's kernel.
template <class Epilogue>
class PartsWarp {
 public:
  using Shared = typename Epilogue::SharedStorage;

  /// Called by the whole warp for each work, in order: lands the parts of a tile that is a sum.
  CUTLASS_DEVICE void load(const PartsArgs& args, const Watch& watch, Shared& shared, WorkCode work, int m,
                           int n, int lane) {
    if (args.sums.count == 0) return;
    const int index = works_++;
    if (index == 0)
      ptx::await_prerequisites();  // an early kernel: the epoch that gates go by may not have begun
    else
      ptx::barrier_wait(&shared.emptied, (index - 1) % 2);
    land_parts(args, watch, shared, index, work, m, n, lane);
    if (lane == 0) ptx::barrier_arrive(&shared.emptied);
  }

 private:
  static constexpr int rows_of_lane = Epilogue::rows / 32;

  CUTLASS_DEVICE void land_parts(const PartsArgs& args, const Watch& watch, Shared& shared, int index,
                                 WorkCode work, int m, int n, int lane) {
    const bool output =
        std::int64_t{m} * args.part_rows < args.rows && std::int64_t{n} * Epilogue::cols < args.cols;
    if (!args.sums.holds(m) || !output || !work.finishes()) return;
    const TileSpot at{work.position(), m, n};
    const int slot = Epilogue::shares_tiles ? 0 : index % 2;
    const GateTable& gate = args.sums.gate;
    for (int i = lane; i < gate.count; i += 32)
      wait_for(gate.targets[at.position * gate.count + i], *watch.epoch, watch);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int part = 0; part < args.sums.count; ++part) {
      if (part > 0 || work.others() > 0) ptx::barrier_wait(&shared.parts.taken[slot], taken_.next(slot));
      __syncwarp();
      land(args, args.sums.parts[part], at, shared, shared.parts.landed[slot], lane);
    }
  }

  CUTLASS_DEVICE static void land(const PartsArgs& args, const Route& from, const TileSpot& at,
                                  Shared& shared, ptx::Barrier& landed, int lane) {
    const Route route = from;
    const char* rows[rows_of_lane];  // null: the row is beyond the shard or the grid
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < rows_of_lane; ++i) {
      const int row = lane + 32 * i;
      const bool exists = row < args.part_rows && std::int64_t{at.m} * args.part_rows + row < args.rows;
      rows[i] = exists ? row_of(route, at, args.part_rows, row) : nullptr;
    }
    // Each lane copies one word of a row at a time.
    constexpr int words = Epilogue::cols / 8, rows_at_once = 32 / words;
    const std::int64_t col = std::int64_t{at.n} * Epilogue::cols + lane % words * 8;
    const bool inside = lane / words < rows_at_once && col < args.cols;
    std::uint32_t to =
        ptx::shared_address(shared.tile.rows) + lane / words * Epilogue::stride + lane % words * 16;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < rows_of_lane; ++i) {
      const auto of_lane = reinterpret_cast<std::uint64_t>(rows[i]);
#pragma unroll 4
      for (int row = 0; row < 32; row += rows_at_once) {
        const std::uint64_t from_row = __shfl_sync(~0u, of_lane, row + lane / words);
        if (from_row != 0 && inside) ptx::copy_async(to, reinterpret_cast<const char*>(from_row) + col * 2);
        to += rows_at_once * Epilogue::stride;
      }
    }
    ptx::copies_arrive(ptx::shared_address(&landed));
  }

  int works_ = 0;
  SlotParities taken_;
};

}  // namespace shingle::cuda
