// Epilogue of a tile (sm90): C, bias, activation, one rounding, stores along the tile's route, notifies.
//
// Phases of a tile:
//
//   1. The MMA warps stage the finished tile in shared memory (staged_tile.cuh), arrive at the mbarrier
//      `filled`, and go on to the next tile.
//   2. The store warp looks up the row addresses while the tile is multiplied. It is the warp that CUTLASS's
//      kernel layer has for epilogue loads, which this epilogue does not need.
//   3. The store warp waits for `filled`, stores the rows in whole lines, and arrives at the mbarrier
//      `emptied`, which frees the staged tile's memory.
//   4. The store warp notifies the tile's counters.
//
// So neither routes nor notifies cost the MMA warps time. The exception is a CTA's last tile, which the MMA
// warps store themselves.
//
// Each row has its own address. Slots, row-subtiles, pools, owners and scattered rows are therefore stored in
// the same way, on this device or another. The store warp uses plain stores, not TMA stores: one TMA store
// for each row takes longer and delays the main loop's loads.
//
// Sums with other ranks' parts (parts.cuh): tiles that are not sums are parts themselves, and are only
// rounded.
//
// Counted rows (live.cuh): rows beyond a tile's count are staged, but have no address. No tile is known to be
// the last one, so the store warp stores all.
//
// Split-K (split.cuh): only the CTA of the last part stores the tile. The CTAs of other parts arrive at the
// same barriers, so that all warps count the fills of the shared-memory tile alike.
//
// Memory order: each staging thread arrives at `filled` (release, CTA). The store warp waits there (acquire,
// CTA). After the store warp's __syncwarp, the release at the scope of the counters' readers covers the
// stores of all its lanes. It also covers the stores of warps that stored a last tile, as those warps arrive
// at `filled` afterwards.
//
// Checks: static_asserts on the warps of a tile and the accumulators of a thread.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/numeric_types.h>
#include <cutlass/epilogue/collective/detail.hpp>

#include <cute/tensor.hpp>

#include "cuda/kernels/ptx/barrier.cuh"
#include "cuda/kernels/ptx/clock.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/ptx/memory.cuh"
#include "cuda/kernels/ptx/shared.cuh"
#include "live.cuh"
#include "output.cuh"
#include "parts.cuh"
#include "split.cuh"
#include "staged_tile.cuh"

namespace shingle::cuda {

/// T: the CUDA type of bias, C and (unless it is fp32) output. Rows × Cols: the tile. Warps: the MMA warps
/// that share a tile.
template <class T, int Rows, int Cols, int Warps, GemmKind Kind>
class HookedEpilogue {
  static constexpr bool Counted = Kind == GemmKind::counted;  // rows are counted at run time (live.cuh)
  static constexpr bool Sums = Kind == GemmKind::sums;        // own tiles may be sums (parts.cuh)

 public:
  using ElementC = T;
  using ElementD = T;
  using StrideC = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
  using StrideD = StrideC;
  using ElementAccumulator = float;
  using Arguments = std::conditional_t<Counted, CountedGemmArgs, GemmArgs>;
  using Params = Arguments;
  using Output = TileOutput<T, Cols>;

  using Staged = StagedTile<T, Rows, Cols, Warps>;

  static constexpr int stride = Staged::stride, all_warps = Staged::all_warps;
  static constexpr int rows = Rows, cols = Cols;            // of a tile
  static constexpr bool shares_tiles = Warps == all_warps;  // false: ping-pong
  static constexpr int most_dests = 32;                     // limit of destinations for paced stores
  struct SharedStorage {
    typename Staged::Memory tile;
    char* rows[Rows];                // addresses of the staged rows
    std::int64_t apart[most_dests];  // bytes from these to the rows at each destination
    // Pending notifies of the last tile, by lane of the store warp.
    std::uint32_t* owed[32];
    ptx::Barrier filled;
    ptx::Barrier emptied;
    PartsBarriers parts;
    // cycles: when the last tile was filled, and the shortest time for a tile
    std::uint32_t filled_at, least_took;
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

  CUTLASS_DEVICE explicit HookedEpilogue(const Params& params) : output_{params} {}

  /// All threads of the CTA call it before a CTA barrier. Some threads call it again after that barrier.
  CUTLASS_DEVICE void open(SharedStorage& shared) {
    shared_ = &shared;
    if (threadIdx.x < 32) shared.owed[threadIdx.x] = nullptr;
    if (threadIdx.x != 0) return;
    shared.filled_at = ptx::cycles(), shared.least_took = ~0u;
    ptx::barrier_init(&shared.filled, Warps * 32);
    ptx::barrier_init(&shared.emptied, Sums && args().sums.count > 0 ? 2 : 1);  // store warp, parts warp
    if constexpr (Sums) shared.parts.open(Warps * 32);
    cutlass::arch::fence_barrier_init();
  }

  /// Called by the MMA warps of a tile: stages the tile, and signals the store warp.
  template <class Coordinate, class Engine, class Layout, class Mma>
  CUTLASS_DEVICE void stage_tile(Coordinate tile, cute::Tensor<Engine, Layout>& sums, Mma, int thread) {
    static_assert(cute::size(Mma{}) == Warps * 32, "the warps that share a tile");
    static_assert(cute::size(Layout{}) * Warps * 32 == Rows * Cols, "accumulators of one thread");
    const int warp = static_cast<int>(threadIdx.x) / 32 - 4;  // warps 0 to 3 load
    // Ping-pong: the two warpgroups take tiles alternately.
    const int slot = shares_tiles ? 0 : warp / 4, index = shares_tiles ? tiles_ : 2 * tiles_ + slot;
    ++tiles_;
    const TileSpot at = spot(tile);
    if (const WorkCode work = code(tile); work.others() > 0) {
      const SplitSums<Rows, Cols, Warps> parts(args(), work, thread);
      const bool output = output_.holds({at.m, at.n});
      if (!work.finishes()) {
        if (output) parts.leave(sums);
        for (int pass = 0; pass < passes(); ++pass) await_emptied(index * passes() + pass), hand_over();
        return;
      }
      await_emptied(index * passes());
      if (output) parts.add_others(sums, ptx::shared_address(shared_->tile.rows) + thread / 32 * 16 * stride);
    }
    if constexpr (Sums)
      if (at.sum && output_.holds({at.m, at.n}))
        add_parts(shared_->parts, landings_, staged(), sums, thread, slot, code(tile).others() > 0);
    if (plain(at)) {
      await_emptied(index);
      staged().stage_plain(sums, thread);
      if (is_last(tile) && output_.holds({at.m, at.n})) ship_own(at, thread);
      hand_over();
      return;
    }
    if (output_.gated() && bare()) {
      await_emptied(index);
      staged().stage_gated(sums, thread);
      hand_over();
      return;
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (half == 0 || passes() == 2) await_emptied(index * passes() + half);
      staged().stage_finished(at.m, at.n, half, sums, thread, warp);
      if (half == 1 || passes() == 2) hand_over();
    }
  }

  /// Called by the store warp for every tile, in the order of staging.
  template <class Coordinate>
  CUTLASS_DEVICE void ship_tile(Coordinate tile, int lane) {
    if (tiles_ == 0) ptx::await_prerequisites();
    if (ends(tile)) ptx::launch_dependents();
    const TileSpot at = spot(tile);
    const bool output = output_.holds({at.m, at.n}) && code(tile).finishes(),
               ships = output && !is_last(tile);
    std::uint32_t* counter = nullptr;  // the lane's first counter
    if constexpr (Counted) live_ = LiveTiles::rows_of_tile(counted_args(), at.position);
    if (ships) look_up<Rows>(at, 0, 0, lane);
    const std::int32_t leaving = ships && !ends(tile) ? rows_to_spread(at) : 0;
    if (leaving > 0 && dests_of(at) > 1) look_apart(at, lane);
    if (output && lane < args().notify.count) counter = output_.counter(at.position, lane);
    for (int pass = 0; pass < passes(); ++pass) {
      __syncwarp();
      const std::uint32_t looked = may_spread() ? ptx::cycles() : 0;
      if (!is_filled()) count_owed(lane);
      ptx::barrier_wait(&shared_->filled, tiles_++ % 2);
      if (may_spread()) note_filled(looked, lane);
      if (leaving > 0)
        ship_spread(at, leaving, code(tile), lane);
      else if (ships)
        ship_at_once(at, pass, lane);
      if (lane == 0) ptx::barrier_arrive(&shared_->emptied);
    }
    if (leaving == 0) count_owed(lane);
    if (!output) return;
    if (leaving > 0 && !Counted)  // nobody knows which tile is the last to pay
      shared_->owed[lane] = counter;
    else
      output_.count(counter);
    output_.notify(at.position, lane + 32, 32);
  }

 private:
  /// True if the next fill is complete. Own tiles of peers await the pending notifies, so that kernels for
  /// sums do not sleep here. In others the next tile is mostly filled after a short sleep.
  CUTLASS_DEVICE bool is_filled() const {
    return Sums ? ptx::barrier_test_wait(&shared_->filled, tiles_ % 2)
                : ptx::barrier_try_wait(&shared_->filled, tiles_ % 2);
  }
  /// Makes the pending notifies of the last tile. The release waits until remote stores have arrived, which
  /// takes long while links are busy. If the next tile is already staged, its first rows are stored first. By
  /// then the last rows of the earlier tile have arrived.
  CUTLASS_DEVICE void count_owed(int lane) const {
    output_.count(shared_->owed[lane]);
    shared_->owed[lane] = nullptr;
  }
  /// Stores the staged rows, one destination after another.
  CUTLASS_DEVICE void ship_at_once(const TileSpot& at, int pass, int lane) const {
    const int dests = dests_of(at);
    for (int d = 0; d < dests; ++d) {
      if (dests > 1 && d + pass > 0) {
        look_up<Rows>(at, d, 0, lane);
        __syncwarp();
      }
      if (output_.gated() && !output_.fp32())
        ship_rows<Cols / 16, Rows, 2>(at, pass, 0, lane, 0);
      else
        ship_rows<Cols / 8, Rows, 2>(at, pass, 0, lane, 0);
      __syncwarp();
    }
  }
  /// Stores the staged rows in steps, each to all destinations, at the pace of remote stores.
  CUTLASS_DEVICE void ship_spread(const TileSpot& at, std::int32_t leaving, WorkCode work, int lane) const {
    Pace pace = next_pace(leaving, work);
    const int dests = dests_of(at);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int first = 0; first < Rows; first += rows_of_step) {
      pace.wait();
      if (first == 2 * rows_of_step) count_owed(lane);
      CUTLASS_PRAGMA_NO_UNROLL
      for (int d = 0; d < dests; ++d) {
        const std::int64_t apart = d == 0 ? 0 : shared_->apart[d];
        if (output_.gated())
          ship_rows<Cols / 16, rows_of_step, 1>(at, 0, first, lane, apart);
        else
          ship_rows<Cols / 8, rows_of_step, 1>(at, 0, first, lane, apart);
        __syncwarp();
      }
    }
  }

  /// Pacing: a tile's remote stores are spread over most of the time that a tile takes. They are spread
  /// further if the SM's share of the links needs longer. All SMs finish tiles at about the same time. Stores
  /// that the links cannot take at once would delay the loads of the next tile on every SM.
  ///
  /// Ping-pong kernels and tiles that are staged in several fills are not paced: while one fill is stored,
  /// the next cannot be staged. Nor are tiles of fewer than 256 columns: on H200 some shapes gained by it and
  /// others lost.
  static constexpr int rows_of_step = 16;
  static constexpr bool spreads = Warps == all_warps && Cols == 256;
  CUTLASS_DEVICE bool may_spread() const {
    return spreads && args().leaving != nullptr && passes() == 1 && args().out.dests <= most_dests;
  }
  /// Rows of the tile stored on other devices, over all destinations; 0 if the tile is not paced.
  CUTLASS_DEVICE std::int32_t rows_to_spread(const TileSpot& at) const {
    if (!may_spread()) return 0;
    const std::int32_t rows = args().leaving[at.position];
    return Counted ? min(rows, live_ * args().out.dests) : rows;
  }
  struct Pace {
    std::uint32_t next = 0, step = 0;  ///< in cycles
    CUTLASS_DEVICE void wait() {
      for (std::int32_t left; (left = static_cast<std::int32_t>(next - ptx::cycles())) > 0;)
        ptx::nano_sleep(static_cast<std::uint32_t>(left) / 4);
      next += step;
    }
  };
  /// Records that a tile was filled, also if it stays on the device. `looked` is when the store warp began to
  /// wait. The first tiles may have been filled while the store warp waited for other ranks. Their time is
  /// unknown, and is ignored.
  CUTLASS_DEVICE void note_filled(std::uint32_t looked, int lane) const {
    constexpr std::uint32_t at_once = 256;
    const std::uint32_t now = ptx::cycles();
    if (lane == 0) {
      if (shared_->least_took != ~0u || now - looked > at_once)
        shared_->least_took = min(shared_->least_took, now - shared_->filled_at);
      shared_->filled_at = now;
    }
    __syncwarp();
  }
  /// Pace of the tile's stores. Assumes that the next tile takes as long as the fastest tile so far, as
  /// slower tiles also waited for the links. A part of a tile takes less: then the links' pace is all.
  CUTLASS_DEVICE Pace next_pace(std::int32_t leaving, WorkCode work) const {
    const std::uint32_t on_links =
        static_cast<std::uint32_t>(leaving * output_.cols() * 2) / 1024 * args().pace;
    const bool hurries = !Counted && work.next() == WorkCode::Next::part;
    const std::uint32_t took = hurries || shared_->least_took == ~0u ? 0 : shared_->least_took;
    return {shared_->filled_at, max(took / 16 * 13, on_links) / (Rows / rows_of_step)};
  }
  /// Writes to shared memory the distance in bytes from the rows at the first destination to those at each
  /// other. Requires look_up(). All destinations have the same layout.
  CUTLASS_DEVICE void look_apart(const TileSpot& at, int lane) const {
    __syncwarp();
    int row = 0;
    while (row < Rows - 1 && shared_->rows[row] == nullptr) ++row;
    if (lane < dests_of(at)) shared_->apart[lane] = output_.row_at(at, row, lane) - shared_->rows[row];
  }

  CUTLASS_DEVICE const GemmArgs& args() const { return output_.args; }
  CUTLASS_DEVICE const CountedGemmArgs& counted_args() const {
    return static_cast<const CountedGemmArgs&>(output_.args);
  }
  CUTLASS_DEVICE Staged staged() const { return {output_, shared_->tile}; }
  /// With Counted, only a position.
  template <class Coordinate>
  CUTLASS_DEVICE static WorkCode code(const Coordinate& tile) {
    return {cute::get<3>(tile)};
  }
  template <class Coordinate>
  CUTLASS_DEVICE TileSpot spot(const Coordinate& tile) const {
    const int m = cute::get<0>(tile);
    return {code(tile).position(), m, cute::get<1>(tile), Sums && args().sums.holds(m)};
  }
  /// True if the work is known to be the CTA's last.
  template <class Coordinate>
  CUTLASS_DEVICE bool ends(const Coordinate& tile) const {
    return !Counted && code(tile).next() == WorkCode::Next::nothing;
  }
  /// True if the MMA warps store the tile themselves. They do so with a CTA's last tile: they have no other
  /// work then, and are up to eight times as many. Not for tiles that are finished by halves.
  template <class Coordinate>
  CUTLASS_DEVICE bool is_last(const Coordinate& tile) const {
    return ends(tile) && plain(spot(tile));
  }
  CUTLASS_DEVICE int dests_of(const TileSpot& at) const {
    return Sums ? output_.dests(at) : args().out.dests;
  }
  /// True if the sums only need rounding.
  CUTLASS_DEVICE bool plain(const TileSpot& at) const {
    return (Sums && output_.is_part(at)) || (args().activate == Activate::none && bare());
  }
  /// True if nothing is added to the sums, and 16 bits of each are stored.
  CUTLASS_DEVICE bool bare() const {
    return args().bias == nullptr && args().c == nullptr && !output_.fp32();
  }
  CUTLASS_DEVICE int passes() const { return Staged::passes(output_); }
  CUTLASS_DEVICE int pass_cols() const { return Staged::pass_cols(output_); }

  CUTLASS_DEVICE void await_emptied(int fill) const {
    if (fill > 0) ptx::barrier_wait(&shared_->emptied, (fill - 1) % 2);
  }
  CUTLASS_DEVICE void hand_over() const { ptx::barrier_arrive(&shared_->filled); }

  /// Called by an MMA warp: stores the rows that it staged.
  CUTLASS_DEVICE void ship_own(const TileSpot& at, int thread) const {
    ptx::await_prerequisites();
    const int lane = thread % 32;
    for (int d = 0; d < dests_of(at); ++d)
      for (int first = thread / 32 * 16; first < Rows; first += Warps * 16) {
        look_up<16>(at, d, first, lane);
        __syncwarp();
        ship_rows<Cols / 8, 16, 2>(at, 0, first, lane, 0);
        __syncwarp();
      }
  }
  /// Writes to shared memory the addresses of `Count` rows of a tile at destination d, from row `first` on.
  template <int Count>
  CUTLASS_DEVICE void look_up(const TileSpot& at, int d, int first, int lane) const {
    for (int row = first + lane; row < first + Count; row += 32)
      shared_->rows[row] =
          output_.row_exists(at.m, row) && (!Counted || row < live_) ? output_.row_at(at, row, d) : nullptr;
  }
  /// Stores `Count` staged rows from `first_row` on, `apart` bytes after the addresses in shared memory. A
  /// row has `Words` words of 16 bytes, and each lane stores one word of a row at a time.
  template <int Words, int Count, int StepsAtOnce>
  CUTLASS_DEVICE void ship_rows(const TileSpot& at, int pass, int first_row, int lane,
                                std::int64_t apart) const {
    constexpr int rows_at_once = 32 / Words;
    const int bytes = output_.bytes(), skipped = pass * pass_cols();
    const std::int64_t left = args().cols - std::int64_t{at.n} * output_.cols() - skipped;
    const int row = lane / Words, word = lane % Words;
    if (row >= rows_at_once || word * 16 >= left * bytes) return;
    const int offset = skipped * bytes + word * 16;
    std::uint32_t from = ptx::shared_address(shared_->tile.rows) + (first_row + row) * stride + word * 16;
    std::uint32_t address = ptx::shared_address(shared_->rows) + (first_row + row) * 8;
    constexpr int step_rows = rows_at_once * StepsAtOnce;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int first = 0; first < Count; first += step_rows) {
      char* to[StepsAtOnce];
      uint4 data[StepsAtOnce];
      CUTLASS_PRAGMA_UNROLL
      for (int u = 0; u < StepsAtOnce; ++u) {
        // If step_rows does not divide Count, the last step exceeds it.
        const bool inside = Count % step_rows == 0 || first + u * rows_at_once + row < Count;
        to[u] = inside ? ptx::ld_shared_pointer(address + u * rows_at_once * 8) : nullptr;
        if (inside) data[u] = ptx::ld_shared_v4(from + u * rows_at_once * stride);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int u = 0; u < StepsAtOnce; ++u)
        if (to[u] != nullptr) ptx::store(to[u] + apart + offset, data[u]);
      from += step_rows * stride;
      address += step_rows * 8;
    }
  }

  const Output output_;
  SharedStorage* shared_ = nullptr;
  SlotParities landings_;
  int tiles_ = 0;  // tiles that this thread has staged, or fills that it has stored
  int live_ = 0;   // Counted, of the store warp: rows of the tile that are stored
};

/// The epilogue with the interface of CUTLASS's kernel layer.
template <class T, int Rows, int Cols, int Warps, GemmKind Kind>
class HookedCollective : public cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
                             HookedEpilogue<T, Rows, Cols, Warps, Kind>> {
  using Adapter = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<
      HookedEpilogue<T, Rows, Cols, Warps, Kind>>;

 public:
  using TensorStorage = typename Adapter::TensorStorage;

  CUTLASS_DEVICE HookedCollective(const typename Adapter::Params& params, TensorStorage& shared)
      : Adapter(params) {
    this->open(shared);
  }

  CUTLASS_DEVICE bool is_producer_load_needed() const { return true; }

  template <class Problem, class TileShape, class Coordinate, class Mma>
  CUTLASS_DEVICE auto load(typename Adapter::LoadPipeline, typename Adapter::LoadPipelineState state, Problem,
                           TileShape, Coordinate tile, Mma, int lane, TensorStorage&, int = -1) {
    this->ship_tile(tile, lane);
    return state;
  }
  template <class Problem, class TileShape, class Coordinate, class Engine, class Layout, class Mma>
  CUTLASS_DEVICE auto store(typename Adapter::LoadPipeline, typename Adapter::LoadPipelineState load_state,
                            typename Adapter::StorePipeline, typename Adapter::StorePipelineState store_state,
                            Problem, TileShape, Coordinate tile, cute::Tensor<Engine, Layout> sums, Mma mma,
                            int thread, TensorStorage&, int = -1) {
    this->stage_tile(tile, sums, mma, thread);
    return cute::make_tuple(load_state, store_state);
  }
};

}  // namespace shingle::cuda
