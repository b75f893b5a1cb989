// Rings of rows in shared memory: a loader warp looks up rows and copies them in by TMA, ahead of the slices
// of threads that work on them.
//
// Each slice has a ring of pieces. A piece is one row of one matrix: of each source, then of the residual.
// The first piece of a row comes with a RowHead: where its results go, and whether the row is in the ring at
// all. The pieces of a row that is not (RowKind::any, RowKind::none) have no bytes. So each row has the same
// number of pieces, and loaders can take turns.
//
// Memory order: a loader writes a head, then arrives at the mbarrier `filled` of the piece (release). The
// slice waits there (acquire), reads, and its warps arrive at `taken`. A ring of n pieces has n + 1 heads:
// the head of row r + n + 1 is written only when a piece of row r + 1 or of a later one is taken, thus after
// row r is done. A slice has one loader, or no more than rows fit into its ring: so no two loaders wait for
// the same piece, whose phases they could confuse. Waits need no deadline: both sides are of one CTA, and
// neither waits for anything else.
#pragma once

#include "chunk.cuh"
#include "cuda/kernels/ptx/bulk.cuh"
#include "kernels.hpp"
#include "route.cuh"

namespace shingle::cuda {

/// Matrices of a row-wise pass in this order: destinations of `to`; with a residual those of `sum`, and the
/// residual; sources. The loader's lane i looks up matrix i. The arrays are in shared memory.
struct RowMatrices {
  Route* route;
  std::int32_t* dest;

  __device__ static int residual(const ElementwiseArgs& args) { return args.to.dests + args.sum.dests; }
  __device__ static int first_source(const ElementwiseArgs& args) {
    return args.has_residual ? residual(args) + 1 : args.to.dests;
  }
  __device__ static int count(const ElementwiseArgs& args) { return first_source(args) + args.source_count; }

  /// Called by all threads of the CTA before a CTA barrier.
  __device__ void fill(const ElementwiseArgs& args, const Route* sources) const {
    for (int i = static_cast<int>(threadIdx.x); i < count(args); i += static_cast<int>(blockDim.x)) {
      const bool source = i >= first_source(args), to = i < args.to.dests;
      route[i] = source                ? sources[i - first_source(args)]
                 : to                  ? args.to
                 : i == residual(args) ? args.residual
                                       : args.sum;
      dest[i] = source || i == residual(args) ? 0 : to ? i : i - args.to.dests;
    }
  }
};

/// The ring of one slice, in shared memory of its own.
class RowRing {
 public:
  __device__ RowRing(char* memory, const RowLayout& layout) : layout_(layout), memory_(memory) {}

  /// Called by one thread, before a CTA barrier.
  __device__ void init() const {
    for (int i = 0; i < layout_.pieces; ++i) {
      ptx::barrier_init(barrier(i), 1);
      ptx::barrier_init(barrier(layout_.pieces + i), static_cast<std::uint32_t>(layout_.threads / 32));
    }
    ptx::fence_barrier_init();
  }

  /// Goes to the first piece of a slice's row, counted from its first one.
  __device__ void seek(int row) {
    const int piece = row * layout_.row_pieces;
    slot_ = piece % layout_.pieces;
    phase_ = static_cast<std::uint32_t>(piece / layout_.pieces) & 1;
    head_ = row % (layout_.pieces + 1);
  }
  __device__ void next_piece() {
    if (++slot_ < layout_.pieces) return;
    slot_ = 0;
    phase_ ^= 1;
  }
  __device__ void next_row() {
    if (++head_ > layout_.pieces) head_ = 0;
  }

  __device__ RowHead& head() const {
    return reinterpret_cast<RowHead*>(memory_ + layout_.pieces * layout_.piece_bytes)[head_];
  }
  __device__ char* piece() const { return memory_ + slot_ * layout_.piece_bytes; }
  __device__ ptx::Barrier* filled() const { return barrier(slot_); }

  __device__ void await_filled() const { ptx::barrier_wait(filled(), phase_); }
  __device__ void await_taken() const { ptx::barrier_wait(taken(), phase_ ^ 1); }
  /// Called by all lanes of each warp of the slice once they have read the piece.
  __device__ void take() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(taken());
    next_piece();
  }

 private:
  __device__ ptx::Barrier* taken() const { return barrier(layout_.pieces + slot_); }
  /// Those of filled pieces, then those of taken ones, behind pieces and heads.
  __device__ ptx::Barrier* barrier(int i) const {
    return reinterpret_cast<ptx::Barrier*>(memory_ + row_ring_bytes(layout_.pieces, layout_.piece_bytes)) -
           2 * layout_.pieces + i;
  }

  const RowLayout& layout_;
  char* memory_;
  int slot_ = 0, head_ = 0;
  std::uint32_t phase_ = 0;
};

/// What a warp does that loads the rows of a slice.
template <class S, class T>
class RowLoader {
 public:
  __device__ RowLoader(const ElementwiseArgs& args, const RowMatrices& matrices)
      : args_(args), matrices_(matrices), aligned_(aligned(args.bias) && aligned(args.norm_weight)) {}

  /// Loads a row, or says in its head what it is.
  __device__ void load(RowRing& ring, int row) const {
    const TileSpot spot{0, row / args_.tile_rows, 0};
    const int within = row - spot.m * args_.tile_rows;
    const int first = RowMatrices::first_source(args_), count = RowMatrices::count(args_);
    char* const at =
        lane() < count ? address(matrices_.route[lane()], spot, within, matrices_.dest[lane()]) : nullptr;
    const RowKind kind = kind_of(at, spot, within);
    ring.await_taken();
    RowHead& head = ring.head();
    if (lane() < first) head.to[lane()] = at;
    if (lane() == 0) head.kind = kind;
    __syncwarp();
    const auto bytes = static_cast<std::uint32_t>(args_.cols * sizeof(S));
    for (int i = first; i < count; ++i) {
      if (i > first) ring.await_taken();
      if (kind == RowKind::whole && tiled(i))
        load_tiles(ring, matrices_.route[i], spot, within, bytes);
      else
        load_piece(ring, shuffled(at, i), kind == RowKind::whole ? bytes : 0);
      ring.next_piece();
    }
    if (!args_.has_residual) return;
    ring.await_taken();
    const auto cols = args_.activate == Activate::swiglu ? args_.cols / 2 : args_.cols;
    load_piece(ring, shuffled(at, RowMatrices::residual(args_)),
               kind == RowKind::whole ? static_cast<std::uint32_t>(cols * sizeof(T)) : 0);
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static char* shuffled(char* at, int from) {
    return reinterpret_cast<char*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(at), from));
  }

  /// True if matrix i is a source whose row may lie in several places.
  __device__ bool tiled(int i) const {
    return i >= RowMatrices::first_source(args_) && matrices_.route[i].by_tile && args_.tiles_n > 1;
  }
  __device__ char* address(const Route& route, TileSpot spot, int row, int dest = 0) const {
    if (route.by_tile) spot.position = args_.position_of[std::int64_t{spot.m} * args_.tiles_n + spot.n];
    return row_of(route, spot, args_.tile_rows, row, dest);
  }

  __device__ RowKind kind_of(const char* at, TileSpot spot, int row) const {
    const int first = RowMatrices::first_source(args_), count = RowMatrices::count(args_);
    if (!__any_sync(~0u, lane() < args_.to.dests && at != nullptr)) return RowKind::none;
    const bool source = lane() >= first;
    bool whole =
        aligned_ && (lane() >= count || tiled(lane()) || (aligned(at) && !(source && at == nullptr)));
    for (int i = first; i < count; ++i)
      if (tiled(i))
        for (spot.n = lane(); whole && spot.n < args_.tiles_n; spot.n += 32) {
          const char* const tile = address(matrices_.route[i], spot, row);
          whole = tile != nullptr && aligned(tile) && args_.tile_cols % (vector_bytes / sizeof(S)) == 0;
        }
    return __all_sync(~0u, whole) ? RowKind::whole : RowKind::any;
  }

  __device__ void load_piece(const RowRing& ring, const char* from, std::uint32_t bytes) const {
    if (lane() != 0) return;
    ptx::barrier_arrive_expect(ring.filled(), bytes);
    if (bytes > 0) ptx::load_bulk(ring.piece(), from, bytes, ring.filled());
  }
  __device__ void load_tiles(const RowRing& ring, const Route& route, TileSpot spot, int row,
                             std::uint32_t bytes) const {
    if (lane() == 0) ptx::barrier_arrive_expect(ring.filled(), bytes);
    __syncwarp();
    const std::uint32_t tile_bytes = static_cast<std::uint32_t>(args_.tile_cols) * sizeof(S);
    for (spot.n = lane(); spot.n < args_.tiles_n; spot.n += 32) {
      const std::uint32_t before = static_cast<std::uint32_t>(spot.n) * tile_bytes;
      ptx::load_bulk(ring.piece() + before, address(route, spot, row), min(bytes - before, tile_bytes),
                     ring.filled());
    }
  }

  const ElementwiseArgs& args_;
  const RowMatrices& matrices_;
  bool aligned_;  ///< the vectors of all rows
};

}  // namespace shingle::cuda
