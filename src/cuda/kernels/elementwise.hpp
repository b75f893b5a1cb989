// Tiled passes over matrices: reorder, sum, epilogue, norm (Elementwise of plan.hpp).
#pragma once

#include <cuda_runtime_api.h>

#include "hooks.hpp"

namespace shingle::cuda {

enum class Element : std::uint8_t { f32, bf16, f16 };
enum class Activate : std::uint8_t { none, relu, gelu, silu, swiglu };

inline constexpr int max_sources = 64;

/// A pass over a grid of `rows` × `cols` output elements in tiles. Sources are summed in their order in fp32,
/// then come bias and activation, the norm, and one rounding.
///
/// Tile by tile: item i is the tile at position i of `order`. Row-wise (norm or swiglu, which need complete
/// rows): item i is row i of tiles, no gates and no notifies; sources are asked for all tiles of the row,
/// by position where their route is by tile (`position_of`), the other routes for the tile of column 0. A
/// norm keeps its row in shared memory: up to about 56000 columns.
///
/// Rows of a source that lie nowhere count as zero, but a plain reorder (one source of the same type, no
/// bias, no activation) leaves their destinations alone. Rows whose destinations all lie nowhere are skipped.
/// Any alignment works; 16 bytes for pointers, row lengths and tile_cols is the fast one.
struct ElementwiseArgs {
  Element source_type = Element::bf16;  ///< of sources
  Element type = Element::bf16;         ///< of everything else
  std::int64_t rows = 0;
  std::int64_t cols = 0;  ///< of the sources; with swiglu the output has half of them
  std::int32_t tile_rows = 0;
  std::int32_t tile_cols = 0;
  std::int32_t tiles_n = 0;
  std::int64_t first = 0;  ///< items [first, last)
  std::int64_t last = 0;
  const TileAt* order = nullptr;              ///< by position
  const std::int32_t* position_of = nullptr;  ///< row-wise: [m · tiles_n + n] → position
  const Route* sources = nullptr;             ///< in device memory, `source_count` of them
  std::int32_t source_count = 1;
  Route to;
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
  std::uint32_t* queue = nullptr;  ///< where several kernels share the items: how many were claimed, growing
                                   ///< by last - first an epoch; null: items are dealt out statically
  Watch watch;
  std::int32_t ctas = 0;  ///< at most so many, and never more than are resident together; 0: all of those
  bool early = false;  ///< its gates say when it may read and write whatever it does: it may begin beside the
                       ///< kernel before it in the stream (tile by tile; from compute capability 9.0 on)
  bool pairs = false;  ///< CTAs take SMs in pairs, where their number is even: to a GEMM in clusters of
                       ///< two that starts beside them a single one is of no use
  std::int32_t room = 0;  ///< bytes of shared memory for what a sum has under way: the launch sets it
};

/// Launches the pass. `source_type` is `type` or f32.
cudaError_t launch_elementwise(const ElementwiseArgs& args, cudaStream_t stream);

/// Loads the kernels: a kernel that is first used while another waits could hang. Also lets them have large
/// shared memory. Once a device, before any launch.
cudaError_t preload_elementwise();

}  // namespace shingle::cuda
