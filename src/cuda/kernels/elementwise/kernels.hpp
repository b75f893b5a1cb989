// Kernels for the passes of elementwise.hpp, and their launch layouts.
#pragma once

#include <cstdint>

#include "cuda/kernels/elementwise.hpp"

namespace shingle::cuda {

inline constexpr int max_row_threads = 512;

/// Most warps that load rows for a row-wise CTA.
inline constexpr int max_row_loaders = 4;
/// Matrices of a row-wise pass whose addresses a loader looks up: one for each lane.
inline constexpr int row_matrices = 32;

/// Chunks of a row in a thread of a row-wise pass: as many as its registers hold.
constexpr int row_batch(bool swiglu) {
  return swiglu ? 2 : 4;
}

enum class RowKind : std::uint32_t {
  none,   ///< it has no destination
  whole,  ///< its pieces are in the ring, and its destinations are multiples of 16 bytes
  any     ///< looked up and loaded by the slice
};

/// What comes with the first piece of a row in a ring (row_ring.cuh).
struct RowHead {
  char* to[row_matrices];  ///< destinations of `to`, then of `sum`; others are not used
  RowKind kind;
};

/// Bytes of a ring: its pieces, a head more than pieces, and two mbarriers for each piece.
constexpr int row_ring_bytes(int pieces, int piece_bytes) {
  constexpr int head = static_cast<int>(sizeof(RowHead)),
                barriers = 2 * static_cast<int>(sizeof(std::uint64_t));
  return pieces * (piece_bytes + head + barriers) + head;
}

/// Threads of a tile-by-tile CTA: the copy warps, then the scheduler warp and the notify warp.
inline constexpr int copy_threads = 512;
inline constexpr int copy_warps = copy_threads / 32;
inline constexpr int tile_threads = copy_threads + 64;

/// Chunks of each source in flight in a copy thread of a sum, for `room` bytes of shared memory. Below 2, the
/// sum uses registers instead.
constexpr int sum_depth(int room, int source_count, int chunk_bytes) {
  constexpr int most = 6;
  const int depth = room / (source_count * copy_threads * chunk_bytes);
  return depth < most ? depth : most;
}

constexpr int size_of(Element type) {
  return type == Element::f32 ? 4 : 2;
}
/// Slots of shared memory of each copy warp, for the pieces of rows that a copy moves by bulk copies.
struct CopySlots {
  int bytes = 0;
  int count = 0;
};
inline constexpr int max_copy_slots = 12;

/// Slots in `room` bytes of shared memory: at least three, so that two loads are ahead of a store. Longer
/// rows are cut into pieces of nearly equal length. None for short rows, of which too few would be in flight:
/// these go through registers.
constexpr CopySlots copy_slots(int room, const ElementwiseArgs& args) {
  constexpr int short_row = 1 << 10, most_bytes = 4 << 10, line = 128;
  const int most = room / (3 * copy_warps) / line * line;
  const std::int64_t cols = args.cols < args.tile_cols ? args.cols : args.tile_cols;
  const std::int64_t row = cols * size_of(args.type);
  if (row < short_row || row > 1 << 30 || most < short_row) return {};
  const int longest = most < most_bytes ? most : most_bytes,
            pieces = static_cast<int>((row + longest - 1) / longest);
  const int bytes = static_cast<int>((row + pieces * line - 1) / (pieces * line)) * line;
  const int count = room / (copy_warps * bytes);
  return {bytes, count < max_copy_slots ? count : max_copy_slots};
}

/// True if the pass needs complete rows.
inline bool row_wise(const ElementwiseArgs& args) {
  return args.norm || args.activate == Activate::swiglu;
}

/// True if the pass only reorders, without conversion.
inline bool copies(const ElementwiseArgs& args) {
  return args.source_count == 1 && !args.mixed && args.source_type == args.type && args.factors == nullptr &&
         args.scale == 1 && args.bias == nullptr && args.activate == Activate::none;
}

/// True if a sum widens all its sources, which have one narrower type.
inline bool widens(const ElementwiseArgs& args) {
  return !args.mixed && args.type == Element::f32 && args.source_type != Element::f32;
}

/// Kernels for tile-by-tile passes (parameter: ElementwiseArgs; a copy with `room` is by bulk copies) and for
/// row-wise passes (also a RowLayout). Null if there is none for these types. `ringed`: RowLayout::pieces is
/// not 0.
const void* find_tiles_kernel(const ElementwiseArgs& args);
const void* find_picked_kernel(const ElementwiseArgs& args);  ///< of tile-by-tile passes with an index
const void* find_rows_kernel(const ElementwiseArgs& args, bool ringed);

}  // namespace shingle::cuda
