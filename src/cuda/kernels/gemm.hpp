// The instrumented GEMM: kernels over CUTLASS's main loops, whose hooks are data.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "elementwise.hpp"

namespace shingle::cuda {

/// A tile shape that was compiled.
struct GemmTile {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  std::int32_t cluster = 1;  ///< consecutive tiles down the rows that start together
};

struct GemmArgs;

/// A sum over K in parts of `depth` (the last may have less), by as many CTAs for each tile; they add up in
/// order, in fp32.
struct SplitK {
  std::int32_t parts = 1;
  std::int32_t depth = 0;            ///< a multiple of 64
  std::int32_t rows = 0;             ///< of a tile whose sums are exchanged, a multiple of 16
  float* sums = nullptr;             ///< sum_bytes() for those of all parts but the last
  std::uint32_t* arrived = nullptr;  ///< arrived_words() words, 0 before and behind every launch

  std::size_t sum_bytes(const GemmArgs& args) const;
  /// One for each tile and warp.
  static std::size_t arrived_words(std::int32_t positions) { return static_cast<std::size_t>(positions) * 8; }
};

/// C[rows×cols] = op(A) · op(B), fp32 accumulation, then bias and activation, one rounding. All matrices are
/// row-major; leading dimensions are in elements, and with the pointers multiples of 16 bytes.
struct GemmArgs {
  Element type = Element::bf16;      ///< of A, B, C and bias; bf16 or f16
  Element out_type = Element::bf16;  ///< of the output: `type` or f32
  GemmTile tile;
  std::int64_t rows = 0;  ///< of the grid
  std::int64_t cols = 0;  ///< of the output: with swiglu B has twice as many, [gate | up]
  std::int64_t k = 0;
  const void* a = nullptr;
  std::int64_t lda = 0;
  std::int64_t a_rows = 0;  ///< of op(A)
  bool transpose_a = false;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  bool transpose_b = false;
  const void* c = nullptr;  ///< added before bias and activation; rows×cols, may be null; with one part only
  std::int64_t ldc = 0;
  const void* bias = nullptr;
  Activate activate = Activate::none;

  /// A tile's rows of op(A) are `a_parts` pieces of `part_rows` rows, together at most the tile's. Piece j of
  /// the tiles in row m of the grid begins at row m · part_rows + j · a_stride of op(A); or, where there is a
  /// table, their one piece at row a_first[m]. With several parts `rows` counts those of one piece over all
  /// of the grid, and `out` has a table. With transpose_a only whole tiles of consecutive rows.
  std::int32_t a_parts = 1;
  std::int32_t part_rows = 0;
  std::int64_t a_stride = 0;
  const std::int32_t* a_first = nullptr;

  const TileAt* order = nullptr;  ///< by position, device memory
  std::int32_t positions = 0;
  SplitK split{};
  Route out;                              ///< of several destinations: a tile's rows lie alike at each
  const std::int32_t* leaving = nullptr;  ///< rows of a tile, over all destinations, that other devices have;
                                          ///< by position; null: none
  std::uint32_t pace = 0;  ///< cycles that an SM takes at least for one KiB of these; 0: no bound
  GateTable gate;
  NotifyTable notify;
  Watch watch;
  std::int32_t ctas = 0;  ///< SMs that it may use
  bool early = false;  ///< it may begin beside the kernel before it in the stream, which it awaits before it
                       ///< stores and counts: what that waits for are those who get the output (sm90)
};

/// So many parts (at least 1), or as many as K has for all to have some; without memory. For kernels that
/// take parts, when all else is set.
SplitK split_k(const GemmArgs& args, std::int64_t parts);

/// The largest params_bytes.
inline constexpr std::size_t most_params_bytes = 2048;

/// Room for the parameters of any kernel, aligned as tensor maps have to be.
struct alignas(128) GemmParams {
  unsigned char bytes[most_params_bytes];
};

/// A kernel: a tile shape, an element type and the layouts of its operands.
struct GemmInstance {
  GemmTile tile;
  Element type = Element::bf16;
  bool transpose_a = false;
  bool transpose_b = false;
  bool splits = false;  ///< whether it takes more than one part of K
  std::int32_t threads = 0;
  std::int32_t shared_bytes = 0;
  std::int32_t params_bytes = 0;
  /// Writes the kernel's parameters for these arguments into `params` (params_bytes of them, aligned to 128).
  cudaError_t (*prepare)(const GemmArgs& args, void* params) = nullptr;
  cudaError_t (*launch)(const void* params, std::int32_t ctas, cudaStream_t stream) = nullptr;
  /// Loads the kernel on the current device: one that is first used while another waits could hang.
  cudaError_t (*load)() = nullptr;
};

/// Kernels around one of CUTLASS's main loops, and so for the same GPUs.
enum class GemmFamily : std::uint8_t {
  sm80,  ///< cp.async and mma.sync: compute capability 8.0 and above
  sm90,  ///< TMA and wgmma: 9.0 alone
};
inline constexpr GemmFamily gemm_families[] = {GemmFamily::sm80, GemmFamily::sm90};

/// "sm80".
const char* name(GemmFamily family);
/// All of a family in this build; none where it was built for none of its architectures.
const std::vector<GemmInstance>& gemm_instances(GemmFamily family);
/// The fastest family in this build for a compute capability.
GemmFamily gemm_family(int major, int minor);

}  // namespace shingle::cuda
