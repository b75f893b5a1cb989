// The instrumented GEMM: kernels around CUTLASS's main loops, with hooks that are data.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "elementwise.hpp"
#include "grid/k_split.hpp"

namespace shingle {
struct SharedTiles;  // grid/split.hpp
}

namespace shingle::cuda {

/// A compiled tile shape.
struct GemmTile {
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  std::int32_t cluster = 1;  ///< consecutive tiles along m that start together
};

struct GemmArgs;

/// Which part of which tile a work is. CUTLASS's kernel layer passes it on as the tile's batch coordinate.
struct WorkCode {
  std::int32_t bits = -1;  ///< negative: there is no work

  static constexpr std::int32_t most_positions = 1 << 22, most_parts = 8;
  /// What the CTA has behind a work.
  enum class Next : std::uint8_t { tile, part, nothing };
  /// `part` of `parts`: the last one adds up.
  static constexpr WorkCode of(std::int32_t position, std::int32_t part, std::int32_t parts, Next next) {
    return {position | part << 22 | (parts - 1) << 25 | static_cast<std::int32_t>(next) << 28};
  }
  /// Of the tile in the plan's order.
  __host__ __device__ std::int32_t position() const { return bits & (most_positions - 1); }
  __host__ __device__ std::int32_t part() const { return bits >> 22 & (most_parts - 1); }
  /// Number of the tile's other parts.
  __host__ __device__ std::int32_t others() const { return bits >> 25 & (most_parts - 1); }
  /// True if the work stores the tile.
  __host__ __device__ bool finishes() const { return part() == others(); }
  __host__ __device__ Next next() const { return static_cast<Next>(bits >> 28); }
};

/// Steps of the main loop, of 64 elements of K each.
struct KSteps {
  std::uint32_t bits = 0;

  static constexpr std::int32_t depth = 64, most = 0xffff;
  static constexpr KSteps of(std::int64_t first, std::int64_t count) {
    return {static_cast<std::uint32_t>(first | count << 16)};
  }
  __host__ __device__ std::int32_t first() const { return static_cast<std::int32_t>(bits & most); }
  __host__ __device__ std::int32_t count() const { return static_cast<std::int32_t>(bits >> 16); }
};

/// Coordinates of a tile in one word: warps that store have no registers left for two.
struct PackedTile {
  std::uint32_t bits = 0;

  static constexpr std::int32_t most_m = 1 << 18, most_n = 1 << 14;
  static constexpr PackedTile of(const TileAt& tile) {
    return {static_cast<std::uint32_t>(tile.m) | static_cast<std::uint32_t>(tile.n) << 18};
  }
  __host__ __device__ std::int32_t m() const { return static_cast<std::int32_t>(bits & (most_m - 1)); }
  __host__ __device__ std::int32_t n() const { return static_cast<std::int32_t>(bits >> 18); }
};

/// What a CTA computes at a time: a tile, or a part of its sum over K.
struct alignas(16) GemmWork {
  PackedTile tile;
  WorkCode code;
  KSteps steps;
};

/// Split-K: workers share tiles (SharedTiles of grid/split.hpp). Parts are added in a fixed order, in fp32.
struct SplitK {
  std::int32_t begin = 0;            ///< first position whose tile may have several parts
  std::int32_t others = 0;           ///< parts of such a tile beside the last, at most; 0: no split
  std::int32_t depth = 0;            ///< KSplit::all: K of a part, a multiple of 64
  std::int32_t rows = 0;             ///< rows of a tile whose sums are exchanged, a multiple of 16
  float* sums = nullptr;             ///< sum_bytes() bytes for the sums of all parts but the last
  std::uint32_t* arrived = nullptr;  ///< arrived_words() words, 0 before and after every launch

  std::size_t sum_bytes(const GemmArgs& args) const;
  /// One word for each shared tile and warp.
  std::size_t arrived_words(const GemmArgs& args) const;
};

/// Sums of own tiles with the parts of other ranks (TileSums of plan.hpp). Rows of tiles belong to `owners`
/// ranks, `turn` of them each in turn; those of `own` are sums. Parts and sums have the type of A. The
/// output's route has the addresses of all tiles: other tiles than sums have one destination, in memory that
/// no call moves.
struct GemmSums {
  std::int32_t count = 0;        ///< parts of a tile; 0: no tile is a sum
  const Route* parts = nullptr;  ///< in device memory, in the order of the sum
  std::int64_t shift = 0;        ///< bytes, added to the addresses of sums at the first `moved` destinations
  std::int32_t moved = 0;        ///< destinations in a matrix of the user; the others are in internal memory
  std::uint8_t matrix = 0;       ///< role of that matrix
  GateTable gate{};              ///< awaited before the parts of a sum are read
  std::int32_t owners = 1, turn = 1, own = 0;

  /// True if the tiles in row m of the grid are sums.
  __host__ __device__ bool holds(std::int32_t m) const { return count > 0 && m / turn % owners == own; }
};

/// C[rows×cols] = op(A) · op(B) with fp32 accumulation, then bias and activation, and one rounding. All
/// matrices are row-major. Leading dimensions are in elements. They and the pointers are multiples of 16
/// bytes.
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
  /// rows×cols, added before bias and activation; may be null. Requires a_parts = 1.
  const void* c = nullptr;
  std::int64_t ldc = 0;
  const void* bias = nullptr;
  Activate activate = Activate::none;

  /// Grouped product: B stacks `weights` matrices of the shape that it has without them, one below the other.
  /// The tiles in row m of the grid multiply number weight_of[m], the same in a cluster. Null: one matrix.
  const std::int32_t* weight_of = nullptr;
  std::int64_t weights = 1;

  /// A tile's rows of op(A) are `a_parts` pieces of `part_rows` rows, together at most the tile's rows. Piece
  /// j of the tiles in row m of the grid begins at row m · part_rows + j · a_stride of op(A). With a table,
  /// their only piece begins at row a_first[m].
  ///
  /// With several parts, `rows` counts the rows of one piece over the whole grid, and `out` must have a
  /// table. With transpose_a, only whole tiles of consecutive rows are possible.
  std::int32_t a_parts = 1;
  std::int32_t part_rows = 0;
  std::int64_t a_stride = 0;
  const std::int32_t* a_first = nullptr;

  /// In device memory: work i is of CTA i % ctas. Without split-K work i is the tile at position i.
  const GemmWork* works = nullptr;
  std::int32_t work_count = 0;
  std::int32_t positions = 0;
  SplitK split{};
  Route out;  ///< with several destinations, a tile's rows have the same layout at each
  /// Rows of a tile stored on other devices, summed over destinations, by position; null: none.
  const std::int32_t* leaving = nullptr;
  std::uint32_t pace = 0;  ///< least cycles of an SM for one KiB of such stores; 0: no limit
  GemmSums sums;           ///< bias and activation are then for sums only
  GateTable gate;
  NotifyTable notify;
  Watch watch;
  std::int32_t ctas = 0;  ///< of the launch, in whole clusters, each on an SM of its own
  /// True if the kernel may start early (programmatic dependent launch, sm90 only). It may load and multiply
  /// before the previous kernel ends, but must wait for it before its first store of output or notify. The
  /// previous kernel waits only for ranks that receive the output.
  bool early = false;
};

/// Rows of a tile that have a token, and of those behind it in its group: *count - before, at least 0. Null:
/// the tile has no rows.
struct alignas(16) LiveRows {
  const std::int32_t* count = nullptr;  ///< read once the tile's gates have opened
  std::int32_t before = 0;
};

/// A grouped product whose rows are counted at run time, without split-K and early start. Rows beyond the
/// count are not stored, and tiles of such rows only notify: as a cluster together, once the gates of its
/// first tile have opened.
struct CountedGemmArgs : GemmArgs {
  const LiveRows* live = nullptr;  ///< by cluster of positions: of its first tile
  /// By cluster: epoch and rows that were found; starts as all ones. For sm90 kernels with gates only.
  std::uint64_t* decided = nullptr;
};

/// What a kernel can do beside multiply. Kernels of sm90 that lack the code of sums have no warp for parts,
/// and registers left for the others.
enum class GemmKind : std::uint8_t {
  plain,
  sums,     ///< for GemmSums
  counted,  ///< for CountedGemmArgs
};
inline constexpr GemmKind gemm_kinds[] = {GemmKind::plain, GemmKind::sums, GemmKind::counted};

/// The largest GemmInstance::params_bytes.
inline constexpr std::size_t most_params_bytes = 2048;

/// Storage for the parameters of any kernel, with the alignment of tensor maps.
struct alignas(128) GemmParams {
  unsigned char bytes[most_params_bytes];
};

/// A compiled kernel: a tile shape, an element type and the layouts of the operands.
struct GemmInstance {
  GemmTile tile;
  Element type = Element::bf16;
  bool transpose_a = false;
  bool transpose_b = false;
  KSplit splits = KSplit::none;
  std::int32_t threads = 0;
  std::int32_t shared_bytes = 0;
  std::int32_t params_bytes = 0;
  /// Writes the kernel's parameters into `params`: params_bytes bytes, aligned to 128.
  cudaError_t (*prepare)(const GemmArgs& args, void* params) = nullptr;
  /// Replaces the addresses that `params` hold by those of `args`: operands, bias, shift of the output, sums
  /// of split-K. All else is as it was in prepare().
  cudaError_t (*rebind)(const GemmArgs& args, void* params) = nullptr;
  cudaError_t (*launch)(const void* params, std::int32_t ctas, cudaStream_t stream) = nullptr;
  /// Loads the kernel on the current device. Loading a kernel while another one waits could deadlock.
  cudaError_t (*load)() = nullptr;
};

/// Deals the tiles of a product, by position, to at most `ctas` CTAs of a kernel. Returns the works. Sets
/// their number in `args`, and the positions, the CTAs and split-K, but no pointers. All else in `args` must
/// be set. Throws InvalidArgument if there are too many tiles or parts.
std::vector<GemmWork> deal(const GemmInstance& instance, GemmArgs& args, const std::vector<TileAt>& tiles,
                           std::int32_t ctas, const SharedTiles& shared);
/// The tiles that CTAs of a kernel share, counted in clusters. `how`: what the product allows.
SharedTiles shared_tiles(const GemmInstance& instance, KSplit how, const GemmArgs& args, std::size_t tiles,
                         std::int32_t ctas);

/// Kernels around one of CUTLASS's main loops, which decides the GPUs that run them.
enum class GemmFamily : std::uint8_t {
  sm80,  ///< cp.async and mma.sync: compute capability 8.0 and above
  sm90,  ///< TMA and wgmma: compute capability 9.0 only
};
inline constexpr GemmFamily gemm_families[] = {GemmFamily::sm80, GemmFamily::sm90};

/// Name of the family, as in "sm80".
const char* name(GemmFamily family);
/// All kernels of a family and a kind in this build; empty if the build lacks the family's architectures.
const std::vector<GemmInstance>& gemm_instances(GemmFamily family, GemmKind kind = GemmKind::plain);
/// The fastest family of this build for a compute capability.
GemmFamily gemm_family(int major, int minor);

}  // namespace shingle::cuda
