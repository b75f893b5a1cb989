// Sums of own tiles with the parts of other ranks (GemmSums), sm90. Parts land in the epilogue's staged tile
// while the tile is multiplied, and the MMA warps add them to their registers.
//
// Phases of a tile that is a sum:
//
//   1. The store warp has stored the tile before, so the staged tile's memory is free. It awaits the gate and
//      copies the rows of the first part there: bulk copies, which tell the mbarrier `landed` of their bytes.
//   2. The MMA warps wait for `landed` once they have multiplied, and add. Each warp reads the places that it
//      stages itself later.
//   3. They arrive at the mbarrier `taken`, and the store warp copies the next part.
//
// With split-K the MMA warps use the staged tile before. They then arrive at `taken` once more, before the
// first part.
//
// Ping-pong kernels have one pair of mbarriers for each warpgroup: a warpgroup does not know how many sums
// the other one has.
//
// Memory order: wait_for() by one lane of the store warp, __syncwarp, then each lane's proxy fence, which
// orders peers' stores and earlier uses of the staged tile before its bulk copies. The copies' bytes complete
// `landed` (release, CTA), where the MMA warps wait (acquire, CTA).
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/kernels/ptx/barrier.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "cuda/kernels/ptx/shared.cuh"
#include "cuda/kernels/wait.cuh"
#include "staged_tile.cuh"

namespace shingle::cuda {

/// Parameters as for HookedEpilogue.
template <class T, int Rows, int Cols, int Warps>
class TileParts {
 public:
  using Staged = StagedTile<T, Rows, Cols, Warps>;

  struct Memory {
    ptx::Barrier landed[2];
    ptx::Barrier taken[2];
  };

  /// Called by one thread before the kernel's fence of mbarriers.
  CUTLASS_DEVICE static void open(Memory& memory) {
    for (int slot = 0; slot < 2; ++slot) {
      ptx::barrier_init(&memory.landed[slot], 1);
      ptx::barrier_init(&memory.taken[slot], Warps * 32);
    }
  }

  /// Called by the MMA warps: adds all parts to the sums of a tile. `slot`: their warpgroup in a ping-pong
  /// kernel, else 0.
  template <class Sums>
  CUTLASS_DEVICE void add_all(Memory& memory, const Staged& staged, Sums& sums, int thread, int slot) {
    const GemmArgs& args = staged.output.args;
    if (args.split.parts > 1) ptx::barrier_arrive(&memory.taken[slot]);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int part = 0; part < args.sums.count; ++part) {
      ptx::barrier_wait(&memory.landed[slot], next_parity(slot));
      staged.add_staged(sums, thread);
      if (part + 1 < args.sums.count) ptx::barrier_arrive(&memory.taken[slot]);
    }
  }

  /// Called by the store warp: copies all parts of a tile to the staged tile, one after the other.
  CUTLASS_DEVICE void land_all(Memory& memory, const Staged& staged, const TileSpot& at, int lane, int slot) {
    const GemmArgs& args = staged.output.args;
    const GateTable& gate = args.sums.gate;
    for (int i = lane; i < gate.count; i += 32)
      wait_for(gate.targets[at.position * gate.count + i], *args.watch.epoch, args.watch);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int part = 0; part < args.sums.count; ++part) {
      if (part > 0 || args.split.parts > 1) ptx::barrier_wait(&memory.taken[slot], next_parity(slot));
      __syncwarp();
      ptx::fence_proxy_async();
      land(memory.landed[slot], staged, args.sums.parts[part], at, lane);
    }
  }

 private:
  CUTLASS_DEVICE static void land(ptx::Barrier& landed, const Staged& staged, const Route& from,
                                  const TileSpot& at, int lane) {
    const auto& output = staged.output;
    const std::int64_t left = output.args.cols - std::int64_t{at.n} * output.cols();
    const auto bytes = static_cast<std::uint32_t>(left < output.cols() ? left : output.cols()) * 2;
    const auto address = [&](int row) -> const char* {  // null: the row is beyond the shard or the grid
      return output.row_exists(at.m, row) ? output.part_at(from, at, row) : nullptr;
    };
    std::uint32_t rows = 0;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int row = lane; row < Rows; row += 32) rows += address(row) != nullptr ? 1 : 0;
    rows = __reduce_add_sync(~0u, rows);
    if (lane == 0) ptx::barrier_arrive_expecting(&landed, rows * bytes);
    __syncwarp();
    const std::uint32_t to = ptx::shared_address(staged.memory.rows), barrier = ptx::shared_address(&landed);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int row = lane; row < Rows; row += 32)
      if (const char* const part = address(row); part != nullptr)
        ptx::copy_bulk(to + row * Staged::stride, part, bytes, barrier);
  }

  /// Parity of the next phase that this thread waits for, of the one mbarrier of a slot that it waits on.
  CUTLASS_DEVICE std::uint32_t next_parity(int slot) {
    const std::uint32_t parity = parities_ >> slot & 1;
    parities_ ^= 1u << slot;
    return parity;
  }

  std::uint32_t parities_ = 0;
};

}  // namespace shingle::cuda
