// Copies of a tile's rows by bulk copies: from memory to a slot of shared memory, and from there to memory.
// One lane of a warp starts them, and no data passes through registers. All slots of a CTA are in flight.
#pragma once

#include "cuda/kernels/ptx/bulk.cuh"
#include "tiles.cuh"

namespace shingle::cuda {

/// The slots of one copy warp, with turns to load and to store them. Only lane 0 copies.
class BulkSlots {
 public:
  /// `room`: the CTA's shared memory for slots. Called by whole warps.
  __device__ BulkSlots(const CopySlots& slots, char* room, ptx::Barrier* arrived)
      : bytes_(slots.bytes), count_(slots.count) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    room_ = room + warp * count_ * bytes_;
    arrived_ = arrived + warp * max_copy_slots;
    if (!leads()) return;
    for (int i = 0; i < count_; ++i) ptx::barrier_init(&arrived_[i], 1);
    ptx::fence_barrier_init();
  }
  static __device__ bool leads() { return threadIdx.x % 32 == 0; }
  __device__ int bytes() const { return bytes_; }
  /// Loads that may be ahead of the stores: a slot is loaded again one store later.
  __device__ int ahead() const { return count_ - 1; }

  __device__ void load(const char* from, int bytes) {
    if (leads()) {
      ptx::barrier_arrive_expect(&arrived_[load_.slot], static_cast<std::uint32_t>(bytes));
      ptx::load_bulk(room_ + load_.slot * bytes_, from, static_cast<std::uint32_t>(bytes),
                     &arrived_[load_.slot]);
    }
    next(load_);
  }
  /// Calls store(slot), which starts stores from the slot that was loaded first. Then waits for the stores
  /// before these to have read their slot.
  template <class Store>
  __device__ void pass_on(Store&& store) {
    if (leads()) {
      ptx::barrier_wait(&arrived_[store_.slot], store_.parity);
      store(room_ + store_.slot * bytes_);
      ptx::commit_bulk();
      ptx::wait_bulk_reads<1>();
    }
    next(store_);
  }
  /// Waits until all slots are free.
  __device__ void free_all() {
    if (leads()) ptx::wait_bulk_reads<0>();
  }
  /// Waits until all stores are visible to this thread.
  __device__ void finish() {
    if (leads()) ptx::wait_bulk<0>();
  }

 private:
  __device__ void next(Turn& turn) const {
    if (++turn.slot < count_) return;
    turn.slot = 0;
    turn.parity ^= 1;
  }

  char* room_;
  ptx::Barrier* arrived_;
  int bytes_, count_;
  Turn load_, store_;
};

/// Sets `lines.whole` if bulk copies can move the rows of a tile: there are slots, and all addresses and
/// lengths are multiples of 16 bytes. Called by the whole scheduler warp. `source_bits(row)`: bits of the
/// source's address.
template <class SourceBits>
__device__ void survey_rows(const ElementwiseArgs& args, const TileWork& work, int element, TileLines& lines,
                            int lane, SourceBits&& source_bits) {
  const std::int64_t indented = std::int64_t{first_col(args.to, work.spot, args.tile_cols)} * element;
  auto bits = static_cast<std::uintptr_t>(work.cols * element);
  if (args.room > 0)
    for (int row = lane; row < work.rows; row += 32) {
      bits |= source_bits(row);
      for (int d = 0; d < args.to.dests; ++d)
        if (char* const to = row_of(args.to, work.spot, args.tile_rows, row, d))
          bits |= reinterpret_cast<std::uintptr_t>(to + indented);
    }
  const bool whole = __all_sync(~0u, args.room > 0 && bits % 16 == 0);
  if (lane == 0) lines.whole = whole;
}

/// Copies the rows of a tile that survey_rows() found to be whole. Its pieces, rows or parts of rows as large
/// as a slot, are dealt out to the copy warps. Each lane looks up the addresses of one piece, and lane 0
/// copies them all. Returns when this warp's stores are visible to its lane 0.
template <class SourceOf>
__device__ void copy_rows(const ElementwiseArgs& args, const TileWork& work, int element, BulkSlots& slots,
                          SourceOf&& source_of) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t indented = std::int64_t{first_col(args.to, work.spot, args.tile_cols)} * element;
  const int row_bytes = work.cols * element, parts = (row_bytes + slots.bytes() - 1) / slots.bytes();
  // The scheduler warp's acquire orders loads through registers only.
  if (slots.leads()) ptx::fence_proxy_async_global();
  for (int first = warp; first < work.rows * parts; first += 32 * copy_warps) {
    const int piece = first + lane * copy_warps, row = piece / parts;
    const int offset = (piece - row * parts) * slots.bytes(), bytes = min(row_bytes - offset, slots.bytes());
    std::uintptr_t from = 0, to = 0;  // null: there is none
    if (row < work.rows) {
      const char* const source = source_of(row);
      char* const dest = row_of(args.to, work.spot, args.tile_rows, row);
      if (dest != nullptr) to = reinterpret_cast<std::uintptr_t>(dest + indented + offset);
      if (source != nullptr && (dest != nullptr || args.to.dests > 1))
        from = reinterpret_cast<std::uintptr_t>(source + offset);
    }
    unsigned to_load = __ballot_sync(~0u, from != 0), to_store = to_load;
    const auto load = [&] {
      const int of = __ffs(static_cast<int>(to_load)) - 1;
      to_load &= to_load - 1;
      slots.load(reinterpret_cast<const char*>(__shfl_sync(~0u, from, of)), __shfl_sync(~0u, bytes, of));
    };
    slots.free_all();
    for (int i = 0; i < slots.ahead() && to_load != 0; ++i) load();
    while (to_store != 0) {
      const int of = __ffs(static_cast<int>(to_store)) - 1;
      to_store &= to_store - 1;
      char* const dest = reinterpret_cast<char*>(__shfl_sync(~0u, to, of));
      const int its_row = __shfl_sync(~0u, row, of), its_offset = __shfl_sync(~0u, offset, of);
      const auto size = static_cast<std::uint32_t>(__shfl_sync(~0u, bytes, of));
      slots.pass_on([&](const char* slot) {
        if (dest != nullptr) ptx::store_bulk(dest, slot, size);
        for (int d = 1; d < args.to.dests; ++d)
          if (char* const also = row_of(args.to, work.spot, args.tile_rows, its_row, d))
            ptx::store_bulk(also + indented + its_offset, slot, size);
      });
      if (to_load != 0) load();
    }
  }
  slots.finish();
}

}  // namespace shingle::cuda
