// Tiled passes over matrices: reorder, sum, epilogue, norm (struct Elementwise of plan.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include "hooks.hpp"

namespace shingle::cuda {

enum class Element : std::uint8_t { f32, bf16, f16 };
enum class Activate : std::uint8_t { none, relu, gelu, silu, swiglu };

inline constexpr int max_sources = 64;

/// A pass over a grid of `rows` × `cols` output elements in tiles. It adds the sources in their order in
/// fp32, then applies scale, bias, activation and norm, and rounds once. With `factors`, element (r, s)
/// multiplies row r of source s first. Factors and scale: tile by tile only.
///
/// Tile by tile: item i is the tile at position i of `order`. Row-wise (norm and swiglu need complete rows):
/// item i is row i of tiles, without gates and notifies. A row-wise pass looks up routes by tile through
/// `position_of`. It looks up sources for every tile of the row, and other routes for the tile of column 0. A
/// norm keeps its row in shared memory, which limits it to about 56000 columns.
///
/// A source row without an address counts as zero. A plain reorder (one source of the same type, no bias, no
/// activation) instead leaves the destination of such a row unchanged. Rows without any destination are
/// skipped. Any alignment works; multiples of 16 bytes for pointers, row lengths and tile_cols are fastest.
struct ElementwiseArgs {
  Element source_type = Element::bf16;  ///< of sources
  Element type = Element::bf16;         ///< of everything else
  /// Sources are f32 where Route::wide, and of `source_type` elsewhere, which is not f32. Tile by tile only.
  bool mixed = false;
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< of the sources; with swiglu the output has half of them
  std::int32_t tile_rows = 0;
  std::int32_t tile_cols = 0;
  std::int32_t tiles_n = 0;
  std::int64_t first = 0;  ///< items [first, last)
  std::int64_t last = 0;
  const TileAt* order = nullptr;              ///< positions → tiles
  const std::int32_t* position_of = nullptr;  ///< row-wise: [m · tiles_n + n] → position
  const Route* sources = nullptr;             ///< `source_count` routes in device memory
  Shifts shifts;                              ///< of the sources
  std::int32_t source_count = 1;
  const float* factors = nullptr;  ///< rows × source_count
  std::int64_t factors_row = 0;    ///< elements from a row to the next
  Route to;
  float scale = 1;  ///< of the sum
  Activate activate = Activate::none;
  const void* bias = nullptr;
  bool norm = false;
  float epsilon = 0;
  const void* norm_weight = nullptr;
  bool has_residual = false;
  Route residual;
  Route sum;
  GateTable gate;
  NotifyTable notify;
  /// Work queue of several kernels: number of items claimed, which grows by last - first in each epoch. Null:
  /// items are dealt out statically.
  std::uint32_t* queue = nullptr;
  bool queue_grows = true;  ///< false if the queue is set to zero after every epoch
  Watch watch;
  /// Limit of CTAs; 0: none. The launch never exceeds the CTAs that can be resident together.
  std::int32_t ctas = 0;
  /// Programmatic dependent launch (PDL): the kernel may run concurrently with the previous kernel of the
  /// stream. Its gates must order all its loads and stores. Tile by tile only, from compute capability 9.0
  /// on.
  bool early = false;
  /// If the number of CTAs is even, CTAs occupy SMs in pairs (clusters of two). A GEMM in clusters of two
  /// that starts beside the pass cannot use a single free SM.
  bool pairs = false;
  /// Bytes of shared memory for chunks in flight of a sum, or rows of a copy; set by the launch.
  std::int32_t room = 0;
  /// Row r of source s is row index[r · index_row + s] of its route, which has no table; no_row: the source
  /// has none, no_token: nothing is stored. Tile by tile, not of mixed types. Null: rows have the order of
  /// the grid.
  const std::int32_t* index = nullptr;
  std::int64_t index_row = 0;
};

/// Layout of a row-wise pass: a CTA has `slices` groups of `threads` threads, and each group works on one
/// row. Each has `slice_bytes` of dynamic shared memory: a ring of `pieces` rows that loader warps fill
/// ahead, then `cached` floats, in which a norm keeps a row that is not in the ring. Behind those of all
/// groups are `weight_bytes` of the norm's weights, for rows in rings.
struct RowLayout {
  std::int32_t threads = 0;
  std::int32_t slices = 0;
  std::int32_t loaders = 0;
  std::int32_t pieces = 0;      ///< 0: there is no ring
  std::int32_t row_pieces = 0;  ///< of each row
  std::int32_t piece_bytes = 0;
  std::int32_t cached = 0;
  std::int32_t slice_bytes = 0;
  std::int32_t weight_bytes = 0;
  std::uint64_t reciprocal = 0;  ///< ⌊2³² / tile_cols⌋ + 1; 0 if there is one column of tiles
};

/// A pass's kernel and the size of its launch.
struct ElementwiseLaunch {
  const void* kernel = nullptr;
  std::int32_t ctas = 0;  ///< 0: nothing to do
  std::int32_t threads = 0;
  std::size_t shared_bytes = 0;
  std::int32_t room = 0;  ///< ElementwiseArgs::room
  RowLayout rows{};       ///< row-wise
  bool pairs = false;     ///< CTAs form clusters of two
  bool early = false;     ///< PDL
};

/// The launch of a pass; it does not depend on addresses. `source_type` is `type` or f32; tile by tile,
/// `type` may also be f32 with any `source_type`.
cudaError_t prepare_elementwise(const ElementwiseArgs& args, ElementwiseLaunch& launch);
/// Launches a pass as it was prepared. Sets args.room.
cudaError_t launch_elementwise(ElementwiseArgs& args, const ElementwiseLaunch& launch, cudaStream_t stream);
/// Prepares and launches a pass.
cudaError_t launch_elementwise(const ElementwiseArgs& args, cudaStream_t stream);

/// Loads the kernels, and allows them large shared memory. Call once for each device, before any launch:
/// loading a kernel while another one waits could deadlock.
cudaError_t preload_elementwise();

}  // namespace shingle::cuda
