// Copies of rows by bulk copies: from memory to a slot of shared memory, and from there to memory. One lane
// of a warp starts them, and no data passes through registers. All slots of a CTA are in flight. In passes
// without notifies, loads of the next tile start before the stores of this tile are done.
#pragma once

#include "cuda/kernels/ptx/bulk.cuh"
#include "tiles.cuh"

namespace shingle::cuda {

/// A row of a tile, or the part of it that fits into a slot.
struct RowPiece {
  const char* from;  ///< null: it is not copied
  char* to;          ///< in the first destination; null: not there
  std::int32_t row;
  std::int32_t offset;  ///< bytes from the tile's first column
  std::int32_t bytes;
  TileSpot tile;
};

/// The value that another lane has. Called by whole warps.
template <class T>
__device__ inline T of_lane(const T& value, int lane) {
  static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
  T result;
#pragma unroll
  for (std::size_t i = 0; i < sizeof(T) / sizeof(std::uint32_t); ++i)
    reinterpret_cast<std::uint32_t*>(&result)[i] =
        __shfl_sync(~0u, reinterpret_cast<const std::uint32_t*>(&value)[i], lane);
  return result;
}

/// The pieces that one copy warp has in flight. Lane i keeps the piece in slot i, and lane 0 starts all
/// copies. Called by whole warps.
class RowStream {
 public:
  /// `room`: the CTA's shared memory for slots. `arrived`: max_copy_slots mbarriers for each copy warp.
  __device__ RowStream(const ElementwiseArgs& args, int element, const CopySlots& slots, char* room,
                       ptx::Barrier* arrived)
      : args_(args),
        element_(element),
        bytes_(slots.bytes),
        count_(slots.count),
        first_(static_cast<int>(threadIdx.x / 32)) {
    room_ = room + first_ * count_ * bytes_;
    arrived_ = arrived + first_ * max_copy_slots;
    if (leads()) {
      for (int i = 0; i < count_; ++i) ptx::barrier_init(&arrived_[i], 1);
      ptx::fence_barrier_init();
    }
    __syncwarp();
  }

  /// Copies this warp's pieces of a tile that survey_rows() found to be whole. The last pieces may still have
  /// to be stored: by later calls, or by finish(). `source_of(row)`: the tile's columns in the source, or
  /// null.
  template <class SourceOf>
  __device__ void copy(const TileWork& work, SourceOf&& source_of) {
    const int row_bytes = work.cols * element_, parts = (row_bytes + bytes_ - 1) / bytes_;
    const int pieces = work.rows * parts;
    // The scheduler warp's acquire orders loads through registers only.
    if (leads()) ptx::fence_proxy_async_global();
    for (int first = first_; first < pieces; first += 32 * copy_warps) {
      const int i = first + lane() * copy_warps, row = i / parts, offset = (i - row * parts) * bytes_;
      RowPiece piece{nullptr, nullptr, row, offset, min(row_bytes - offset, bytes_), work.spot};
      if (i < pieces) {
        const char* const source = source_of(row);
        char* const dest = row_of(args_.to, work.spot, args_.tile_rows, row);
        if (dest != nullptr) piece.to = dest + indent(work.spot) + offset;
        if (source != nullptr && (dest != nullptr || args_.to.dests > 1)) piece.from = source + offset;
      }
      for (unsigned left = __ballot_sync(~0u, piece.from != nullptr); left != 0; left &= left - 1)
        load(of_lane(piece, __ffs(static_cast<int>(left)) - 1));
    }
    // The next tile begins with the warp after this tile's last one: small tiles use all warps in turn.
    first_ = static_cast<int>(static_cast<unsigned>(first_ - pieces) % copy_warps);
  }
  /// Stores the oldest piece if it has been loaded. Returns false if none is in flight.
  __device__ bool store_arrived() {
    if (in_flight_ == 0) return false;
    if (__all_sync(~0u, ptx::barrier_test_wait(&arrived_[store_.slot], store_.parity))) store_oldest();
    return true;
  }
  /// Stores all pieces, and waits until the stores are visible to lane 0.
  __device__ void finish() {
    while (in_flight_ > 0) store_oldest();
    if (leads()) ptx::wait_bulk<0>();
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ bool leads() { return lane() == 0; }

  /// Bytes to the tile's columns in the output.
  __device__ std::int64_t indent(const TileSpot& tile) const {
    return std::int64_t{first_col(args_.to, tile, args_.tile_cols)} * element_;
  }
  /// At most one store has not yet read its slot. So that this is not the slot to load, one slot stays free.
  __device__ void load(const RowPiece& piece) {
    if (in_flight_ == count_ - 1) store_oldest();
    if (lane() == load_.slot) held_ = piece;
    if (leads()) {
      const auto bytes = static_cast<std::uint32_t>(piece.bytes);
      ptx::barrier_arrive_expect(&arrived_[load_.slot], bytes);
      ptx::load_bulk(room_ + load_.slot * bytes_, piece.from, bytes, &arrived_[load_.slot]);
    }
    ++in_flight_;
    next(load_);
  }
  __device__ void store_oldest() {
    const RowPiece piece = of_lane(held_, store_.slot);
    if (leads()) {
      ptx::barrier_wait(&arrived_[store_.slot], store_.parity);
      const char* const slot = room_ + store_.slot * bytes_;
      const auto bytes = static_cast<std::uint32_t>(piece.bytes);
      if (piece.to != nullptr) ptx::store_bulk(piece.to, slot, bytes);
      for (int d = 1; d < args_.to.dests; ++d)
        if (char* const row = row_of(args_.to, piece.tile, args_.tile_rows, piece.row, d))
          ptx::store_bulk(row + indent(piece.tile) + piece.offset, slot, bytes);
      ptx::commit_bulk();
      ptx::wait_bulk_reads<1>();
    }
    --in_flight_;
    next(store_);
  }
  __device__ void next(Turn& turn) const {
    if (++turn.slot < count_) return;
    turn.slot = 0;
    turn.parity ^= 1;
  }

  const ElementwiseArgs& args_;
  char* room_;
  ptx::Barrier* arrived_;
  int element_;        ///< bytes
  int bytes_, count_;  ///< of a slot; slots
  int first_;          ///< this warp's first piece of the next tile
  int in_flight_ = 0;
  Turn load_, store_;
  RowPiece held_;
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

}  // namespace shingle::cuda
