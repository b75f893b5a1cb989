// What becomes of a finished tile: epilogue, one rounding, stores along its route, and the notify.
//
// Phases, by warp (16 rows of the tile for each block of rows that its warpgroup multiplies): for every 128
// bytes of columns the accumulators go through the warp's own 2 KiB of shared memory, so that each row leaves
// in whole lines. Where there is nothing to do to them they are rounded on the way in; else they go in as
// they are, and C, bias and activation meet them on the way out. Rows have addresses of their own: slots,
// row-subtiles, pools, owners and scattered rows are all the same to it, on this device or another.
// Roles: the warps that multiply also store; the kernel layer's warp for epilogue loads, which has nothing to
// load here, is the notifier: a release waits until the stores are done, a microsecond in which those who
// store go on to the next tile. Memory order: plain stores by all threads, each of which then arrives
// (release, CTA) at the tile's barrier; the notifier waits there (acquire, CTA), and its release at the scope
// of the readers covers them all.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>
#include <cutlass/epilogue/collective/detail.hpp>

#include <cute/tensor.hpp>

#include "../elementwise/activation.cuh"
#include "../gemm.hpp"
#include "../pair.cuh"
#include "../ptx/barrier.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/stmatrix.cuh"

namespace shingle::cuda {

struct EpilogueArgs {
  std::int64_t rows = 0, cols = 0;  ///< of the output
  const void* c = nullptr;
  std::int64_t ldc = 0;
  const void* bias = nullptr;
  Activate activate = Activate::none;
  bool out_f32 = false;
  std::int32_t parts = 1;  ///< of a tile's rows, as in GemmArgs
  std::int32_t part_rows = 0;
  Route out;
  NotifyTable notify;
};

/// T: the CUDA type of bias, C and (unless it is fp32) output. Warps: that multiply; Rows × Cols: the tile.
template <class T, int Rows, int Cols, int Warps>
class HookedEpilogue {
 public:
  using ElementC = T;
  using ElementD = T;
  using StrideC = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
  using StrideD = StrideC;
  using ElementAccumulator = float;
  using Arguments = EpilogueArgs;
  using Params = EpilogueArgs;

  static constexpr int line = 128;        // bytes of a row that are stored at once
  static constexpr int slab = 16 * line;  // bytes that a warp stages
  static constexpr int all_warps = 8;     // of both warpgroups, also where each has a tile of its own
  static constexpr int stages = 2;        // tiles that have been stored and not been told of
  struct SharedStorage {
    alignas(128) char staging[all_warps * slab];
    ptx::Barrier stored[stages];
    ptx::Barrier told[stages];
  };

  template <class Problem>
  static Params to_underlying_arguments(const Problem&, const Arguments& args, void*) {
    return args;
  }
  template <class Problem>
  static std::size_t get_workspace_size(const Problem&, const Arguments&) {
    return 0;
  }
  template <class Problem>
  static cutlass::Status initialize_workspace(const Problem&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  template <class Problem>
  static bool can_implement(const Problem&, const Arguments&) {
    return true;
  }

  CUTLASS_DEVICE explicit HookedEpilogue(const Params& params) : params_(params) {}

  /// All threads of the CTA call it, before a barrier of theirs; some again behind it.
  CUTLASS_DEVICE void open(SharedStorage& shared) {
    shared_ = &shared;
    if (threadIdx.x != 0) return;
    for (int s = 0; s < stages; ++s) {
      ptx::barrier_init(&shared.stored[s], Warps * 32);
      ptx::barrier_init(&shared.told[s], 1);
    }
    cutlass::arch::fence_barrier_init();
  }

  /// Whether tiles have more to them than their sums.
  CUTLASS_DEVICE bool hooked() const { return params_.notify.count > 0 || params_.out.table != nullptr; }

  /// By the warps that multiplied a tile: its sums go where they belong.
  template <class Coordinate, class Engine, class Layout, class Mma>
  CUTLASS_DEVICE void store_tile(Coordinate tile, const cute::Tensor<Engine, Layout>& sums, Mma, int thread) {
    static_assert(cute::size(Mma{}) == Warps * 32, "the warps that share a tile");
    static_assert(cute::size(Layout{}) * Warps * 32 == Rows * Cols, "accumulators of one thread");
    const TileCoordinate at{cute::get<0>(tile), cute::get<1>(tile), cute::get<3>(tile)};
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4;  // the first four load
    const std::uint32_t staging = ptx::shared_address(shared_->staging) + warp * slab;
    if (holds_output(at.m, at.n)) {
      if (plain())
        store_plain(at, sums, thread, staging);
      else
        store_finished(at, sums, thread, staging);
    }
    if (!hooked()) return;
    // Of two warpgroups with a tile of their own each, the second has every second one.
    const int index = Warps == all_warps ? tiles_ : 2 * tiles_ + warp / 4;
    ++tiles_;
    if (index >= stages) ptx::barrier_wait(&shared_->told[index % stages], (index / stages - 1) % 2);
    ptx::barrier_arrive(&shared_->stored[index % stages]);
  }

  /// By the notifier, for every tile in the order in which they are stored.
  template <class Coordinate>
  CUTLASS_DEVICE void tell(Coordinate tile, int lane) {
    const int index = tiles_++;
    prefetch_route(cute::get<0>(tile), cute::get<3>(tile), lane);
    ptx::barrier_wait(&shared_->stored[index % stages], index / stages % 2);
    if (lane != 0) return;
    ptx::barrier_arrive(&shared_->told[index % stages]);
    if (!holds_output(cute::get<0>(tile), cute::get<1>(tile))) return;
    const NotifyTable& notify = params_.notify;
    for (int i = 0; i < notify.count; ++i) {
      std::uint32_t* counter = notify.counters[cute::get<3>(tile) * notify.count + i];
      if (counter == nullptr) continue;
      if (notify.system)
        ptx::add_release_sys(counter, 1);
      else
        ptx::add_release_gpu(counter, 1);
    }
  }

 private:
  struct TileCoordinate {
    int m, n, position;
  };

  CUTLASS_DEVICE bool swiglu() const { return params_.activate == Activate::swiglu; }
  /// Whether accumulators need no more than to be rounded.
  CUTLASS_DEVICE bool plain() const {
    return params_.activate == Activate::none && params_.bias == nullptr && params_.c == nullptr &&
           !params_.out_f32;
  }
  /// Columns of the output that a tile holds.
  CUTLASS_DEVICE int out_cols() const { return swiglu() ? Cols / 2 : Cols; }
  CUTLASS_DEVICE bool holds_output(int m, int n) const {
    return static_cast<std::int64_t>(m) * params_.part_rows < params_.rows &&
           static_cast<std::int64_t>(n) * out_cols() < params_.cols;
  }
  /// Whether a tile's row is one of the output.
  CUTLASS_DEVICE bool row_exists(int m, int row) const {
    return row / params_.part_rows < params_.parts &&
           static_cast<std::int64_t>(m) * params_.part_rows + row % params_.part_rows < params_.rows;
  }
  /// The first byte of a tile's row at destination d, or null.
  CUTLASS_DEVICE char* row_at(const TileCoordinate& at, int row, int d) const {
    if (!row_exists(at.m, row)) return nullptr;
    const Route& out = params_.out;
    const std::int64_t column = static_cast<std::int64_t>(at.n) * out_cols() * (params_.out_f32 ? 4 : 2);
    if (out.table == nullptr)
      return out.base + (static_cast<std::int64_t>(at.m) * params_.part_rows + row) * out.row_bytes + column;
    const std::int64_t entries = static_cast<std::int64_t>(out.by_tile ? at.position : at.m) * out.pieces;
    char* const piece = out.table[(entries + row / out.piece_rows) * out.dests + d];
    if (piece == nullptr) return nullptr;
    return piece + (row % out.piece_rows) * out.row_bytes + (out.by_tile ? 0 : column);
  }
  /// The addresses that the tile's stores will ask for, while it is still being multiplied.
  CUTLASS_DEVICE void prefetch_route(int m, int position, int lane) const {
    const Route& out = params_.out;
    if (out.table == nullptr) return;
    const int entries = out.pieces * out.dests;
    char* const* first = out.table + static_cast<std::int64_t>(out.by_tile ? position : m) * entries;
    for (int i = lane * 16; i < entries; i += 32 * 16) ptx::prefetch_l1(first + i);
  }
  /// 16-byte words of a staged row are permuted by its number, so that neither side meets bank conflicts.
  CUTLASS_DEVICE static std::uint32_t staged(std::uint32_t staging, int row, int word) {
    return staging + row * line + ((word ^ (row & 7)) * 16);
  }

  /// Eight lanes store a line: 16 bytes each of four rows at a time.
  template <class Sums>
  CUTLASS_DEVICE void store_plain(const TileCoordinate& at, const Sums& sums, int thread,
                                  std::uint32_t staging) const {
    constexpr int chunk = line / 2;
    const int lane = thread % 32, word = lane % 8;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Rows / (16 * Warps); ++i) {
      const int first_row = (i * Warps + thread / 32) * 16;
      char* rows[4];
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 4; ++r) rows[r] = row_at(at, first_row + r * 4 + lane / 8, 0);
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < Cols; first += chunk) {
        stage_rounded(&sums(i * (Cols / 2) + first / 2), lane, staging);
        __syncwarp();
        const int column = first + word * 8;
        if (static_cast<std::int64_t>(at.n) * Cols + column < params_.cols) {
          CUTLASS_PRAGMA_UNROLL
          for (int r = 0; r < 4; ++r) {
            const uint4 data = ptx::ld_shared_v4(staged(staging, r * 4 + lane / 8, word));
            if (rows[r] != nullptr) *reinterpret_cast<uint4*>(rows[r] + column * 2) = data;
            for (int d = 1; d < params_.out.dests; ++d)
              if (char* to = row_at(at, first_row + r * 4 + lane / 8, d))
                *reinterpret_cast<uint4*>(to + column * 2) = data;
          }
        }
        __syncwarp();
      }
    }
  }
  /// Sixteen rows of 64 columns; of each 16×8 block a lane holds four, two of a row eight apart.
  template <class Sum>
  CUTLASS_DEVICE static void stage_rounded(const Sum* sums, int lane, std::uint32_t staging) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 8; j += 2) {
      const Sum* x = sums + 4 * j;
      ptx::stmatrix_x4(staged(staging, lane % 16, j + lane / 16), Pair<T>::pack(x[0], x[1]),
                       Pair<T>::pack(x[2], x[3]), Pair<T>::pack(x[4], x[5]), Pair<T>::pack(x[6], x[7]));
    }
  }

  /// Sixteen rows of 32 columns at a time; with swiglu of 16 gates and 16 ups.
  template <class Sums>
  CUTLASS_DEVICE void store_finished(const TileCoordinate& at, const Sums& sums, int thread,
                                     std::uint32_t staging) const {
    const int lane = thread % 32;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Rows / (16 * Warps); ++i) {
      const int first_row = (i * Warps + thread / 32) * 16;
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < Cols; first += 32) {
        const float* x = &sums(i * (Cols / 2));
        if (swiglu()) {
          stage_sums(x + first / 4, lane, 0, staging);
          stage_sums(x + (first + Cols) / 4, lane, 4, staging);
          __syncwarp();
          finish_words(at, first_row, first / 2, 2, lane, staging);
        } else {
          stage_sums(x + first / 2, lane, 0, staging);
          stage_sums(x + (first + 16) / 2, lane, 4, staging);
          __syncwarp();
          finish_words(at, first_row, first, 4, lane, staging);
        }
        __syncwarp();
      }
    }
  }
  /// Sixteen columns as they are, from the row's `word` on.
  CUTLASS_DEVICE static void stage_sums(const float* sums, int lane, int word, std::uint32_t staging) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < 2; ++j) CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half)
      ptx::st_shared_v2(staged(staging, lane / 4 + 8 * half, word + 2 * j + lane % 4 / 2) + lane % 2 * 8,
                        sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
  }
  /// Eight columns of the output by each lane, `per_row` lanes to a row: C, bias, activation, one rounding.
  CUTLASS_DEVICE void finish_words(const TileCoordinate& at, int first_row, int first, int per_row, int lane,
                                   std::uint32_t staging) const {
    const int column = first + lane % per_row * 8;
    const std::int64_t in_matrix = static_cast<std::int64_t>(at.n) * out_cols() + column;
    if (in_matrix >= params_.cols) return;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int row = lane / per_row; row < 16; row += 32 / per_row) {
      if (!row_exists(at.m, first_row + row)) continue;
      float x[8], up[8];
      load_staged(x, staged(staging, row, lane % per_row * 2), staged(staging, row, lane % per_row * 2 + 1));
      if (swiglu())
        load_staged(up, staged(staging, row, lane % per_row * 2 + 4),
                    staged(staging, row, lane % per_row * 2 + 5));
      finish(at.m, first_row + row, in_matrix, x, up);
      for (int d = 0; d < params_.out.dests; ++d)
        if (char* to = row_at(at, first_row + row, d)) store_word(to, column, x);
    }
  }
  CUTLASS_DEVICE static void load_staged(float (&x)[8], std::uint32_t low, std::uint32_t high) {
    const uint4 a = ptx::ld_shared_v4(low), b = ptx::ld_shared_v4(high);
    const std::uint32_t bits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 8; ++v) x[v] = __uint_as_float(bits[v]);
  }
  CUTLASS_DEVICE void finish(int m, int row, std::int64_t column, float (&x)[8], float (&up)[8]) const {
    if (params_.c != nullptr)
      add(x, static_cast<const T*>(params_.c) +
                 (static_cast<std::int64_t>(m) * params_.part_rows + row) * params_.ldc + column);
    if (params_.bias != nullptr) {
      add(x, static_cast<const T*>(params_.bias) + column);
      if (swiglu()) add(up, static_cast<const T*>(params_.bias) + params_.cols + column);
    }
    if (!swiglu()) return cuda::activate(params_.activate, x);
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 8; ++v) x[v] = silu(x[v]) * up[v];
  }
  CUTLASS_DEVICE static void add(float (&x)[8], const T* of) {
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(of));
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < 4; ++v) {
      const float2 both = Pair<T>::unpack(pairs[v]);
      x[2 * v] += both.x, x[2 * v + 1] += both.y;
    }
  }
  CUTLASS_DEVICE void store_word(char* row, int column, const float (&x)[8]) const {
    if (params_.out_f32) {
      auto* to = reinterpret_cast<float4*>(row + column * 4);
      to[0] = {x[0], x[1], x[2], x[3]};
      to[1] = {x[4], x[5], x[6], x[7]};
    } else {
      *reinterpret_cast<uint4*>(row + column * 2) = {Pair<T>::pack(x[0], x[1]), Pair<T>::pack(x[2], x[3]),
                                                     Pair<T>::pack(x[4], x[5]), Pair<T>::pack(x[6], x[7])};
    }
  }

  const Params& params_;
  SharedStorage* shared_ = nullptr;
  int tiles_ = 0;  // that this thread has seen
};

/// The same in the words of the kernel layer.
template <class T, int Rows, int Cols, int Warps>
class HookedCollective : public cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
                             HookedEpilogue<T, Rows, Cols, Warps>> {
  using Adapter = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
      HookedEpilogue<T, Rows, Cols, Warps>>;

 public:
  using TensorStorage = typename Adapter::TensorStorage;

  CUTLASS_DEVICE HookedCollective(const EpilogueArgs& params, TensorStorage& shared) : Adapter(params) {
    this->open(shared);
  }

  CUTLASS_DEVICE bool is_producer_load_needed() const { return this->hooked(); }

  template <class Problem, class TileShape, class Coordinate, class Mma>
  CUTLASS_DEVICE auto load(typename Adapter::LoadPipeline, typename Adapter::LoadPipelineState state, Problem,
                           TileShape, Coordinate tile, Mma, int lane, TensorStorage&, int = -1) {
    this->tell(tile, lane);
    return state;
  }
  template <class Problem, class TileShape, class Coordinate, class Engine, class Layout, class Mma>
  CUTLASS_DEVICE auto store(typename Adapter::LoadPipeline, typename Adapter::LoadPipelineState load_state,
                            typename Adapter::StorePipeline, typename Adapter::StorePipelineState store_state,
                            Problem, TileShape, Coordinate tile, cute::Tensor<Engine, Layout> sums, Mma mma,
                            int thread, TensorStorage&, int = -1) {
    this->store_tile(tile, sums, mma, thread);
    return cute::make_tuple(load_state, store_state);
  }
};

}  // namespace shingle::cuda
