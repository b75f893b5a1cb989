// The kernels of elementwise.hpp, by what they are made for, and how they are laid out.
#pragma once

#include "cuda/kernels/elementwise.hpp"

namespace shingle::cuda {

inline constexpr int max_row_threads = 512;

/// Chunks that a thread of a row-wise pass has under way: as many as its registers hold.
constexpr int row_batch(bool swiglu) {
  return swiglu ? 2 : 4;
}

/// Of a CTA that goes tile by tile: movers, and two warps more.
inline constexpr int movers = 512;
inline constexpr int tile_threads = movers + 64;

/// Chunks of each source that a mover of a sum has under way in so much shared memory; less than 2: it holds
/// them in registers instead.
constexpr int sum_depth(int room, int source_count, int chunk_bytes) {
  constexpr int most = 6;
  const int depth = room / (source_count * movers * chunk_bytes);
  return depth < most ? depth : most;
}

/// A row-wise pass: CTAs of `slices` groups of `threads` threads, each with a row of its own and, for a norm,
/// with `cached` floats of dynamic shared memory to keep it in.
struct RowLayout {
  std::int32_t threads = 0;
  std::int32_t slices = 0;
  std::int32_t cached = 0;
  std::uint64_t reciprocal = 0;  ///< 2³² / tile_cols, rounded up; 0 where there is one column of tiles
};

constexpr int size_of(Element type) {
  return type == Element::f32 ? 4 : 2;
}
/// Whether the pass needs complete rows.
inline bool row_wise(const ElementwiseArgs& args) {
  return args.norm || args.activate == Activate::swiglu;
}

/// Whether the pass only reorders: it converts nothing.
inline bool copies(const ElementwiseArgs& args) {
  return args.source_count == 1 && args.source_type == args.type && args.bias == nullptr &&
         args.activate == Activate::none;
}

/// The kernel for a pass tile by tile, whose parameter is ElementwiseArgs; or row-wise, with a RowLayout
/// besides. Null where there is none for these types.
const void* find_tiles_kernel(const ElementwiseArgs& args);
const void* find_rows_kernel(const ElementwiseArgs& args);

}  // namespace shingle::cuda
