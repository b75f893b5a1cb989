// Work of the copy warps on a tile: copy it, or sum its sources.
#pragma once

#include "activation.cuh"
#include "bulk_rows.cuh"
#include "chunk.cuh"
#include "cuda/kernels/ptx/copy_groups.cuh"
#include "cuda/kernels/ptx/shared.cuh"
#include "tiles.cuh"

namespace shingle::cuda {

/// The chunks of a tile that one copy thread moves. Neighbouring threads take neighbouring chunks of a row,
/// then the next row, so that warps load and store whole lines.
struct Walk {
  int across;  ///< threads side by side in a row
  int down;    ///< rows in flight together
  int chunks;  ///< in a row
  int first;
  int chunk;
  int row;

  __device__ Walk(const TileWork& work, int length) {
    const int thread = static_cast<int>(threadIdx.x);
    chunks = (work.cols + length - 1) / length;
    across = min(chunks, copy_threads);
    down = copy_threads / across;
    first = chunk = thread % across;
    row = thread / across < down ? thread / across : work.rows;
  }
  __device__ void next() {
    chunk += across;
    if (chunk < chunks) return;
    chunk = first;
    row += down;
  }
};

/// A chunk of a tile: its row, and its column in the tile.
struct Spot {
  int row;
  int col;
};

/// Stores a chunk to the destinations from `first` on.
template <class T, int length>
__device__ inline void store_all(const ElementwiseArgs& args, const TileWork& work, Spot at,
                                 const Chunk<T, length>& chunk, int first = 0) {
  const int col = first_col(args.to, work.spot, args.tile_cols) + at.col;
  for (int d = first; d < args.to.dests; ++d)
    if (char* const row = row_of(args.to, work.spot, args.tile_rows, at.row, d))
      store(chunk, row + col * std::int64_t{sizeof(T)}, work.cols - at.col);
}

/// What the rows of a tile's sources are multiplied by: 1 without factors, which changes no bit of a sum.
class Factors {
 public:
  __device__ Factors(const ElementwiseArgs& args, const TileWork& work, int row)
      : of_row_(args.factors == nullptr
                    ? nullptr
                    : args.factors + (std::int64_t{work.spot.m} * args.tile_rows + row) * args.factors_row) {}
  __device__ float of(int source) const { return of_row_ == nullptr ? 1.0f : of_row_[source]; }

 private:
  const float* of_row_;
};

/// False if the source's row has no address.
template <class T, int length>
__device__ inline bool load_from(const ElementwiseArgs& args, const Route& source, const TileWork& work,
                                 Spot at, Chunk<T, length>& chunk) {
  if (at.row >= work.rows) return false;
  const char* const row = row_of(source, work.spot, args.tile_rows, at.row);
  if (row == nullptr) return false;
  const int col = first_col(source, work.spot, args.tile_cols) + at.col;
  load(chunk, row + col * std::int64_t{sizeof(T)}, work.cols - at.col);
  return true;
}

/// Copies tiles whose rows are whole by bulk copies, and calls by_registers(work) for others.
/// `source_of(work)`: a function from a row of the tile to the address of its columns, or null.
template <class T, class SourceOf, class Tile>
__device__ __forceinline__ void copy_tiles(const ElementwiseArgs& args, TileRing& ring, SourceOf&& source_of,
                                           Tile&& by_registers) {
  extern __shared__ __align__(128) char slots_room[];
  __shared__ ptx::Barrier arrived[copy_warps * max_copy_slots];
  RowStream rows(args, static_cast<int>(sizeof(T)), copy_slots(args.room, args), slots_room, arrived);
  const auto copy = [&](int slot, const TileWork& work) {
    if (ring.lines[slot].whole)
      rows.copy(work, source_of(work));
    else
      by_registers(work);
    if (args.notify.count > 0) rows.finish();  // others wait for this tile
  };
  for_each_tile(ring, copy, [&] { return rows.store_arrived(); });
  rows.finish();
}

/// Reorders one source through registers. T: any type with the size of an element. `batch`: loads in flight
/// in a thread.
template <class T, int batch = 8>
struct Copy {
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(T));

  /// The tile's columns in a row of the source; null: the row has no address.
  static __device__ __forceinline__ const char* columns_of(const ElementwiseArgs& args, const Route& source,
                                                           const TileWork& work, int row) {
    const char* const at = row_of(source, work.spot, args.tile_rows, row);
    if (at == nullptr) return nullptr;
    return at + first_col(source, work.spot, args.tile_cols) * std::int64_t{sizeof(T)};
  }
  static __device__ __forceinline__ void survey(const ElementwiseArgs&, const Route*, const TileWork&,
                                                TileLines&, int) {}
  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    for_each_tile(ring, [&](int, const TileWork& work) { tile(args, sources, work); });
  }
  /// Looks up all addresses of a batch before the first load. Lookups are loads themselves: one that waited
  /// for another would cost its latency for each chunk.
  static __device__ __forceinline__ void tile(const ElementwiseArgs& args, const Route* sources,
                                              const TileWork& work) {
    const std::int64_t skipped = first_col(sources[0], work.spot, args.tile_cols);
    const std::int64_t indented = first_col(args.to, work.spot, args.tile_cols);
    for (Walk walk(work, length); walk.row < work.rows;) {
      const char* from[batch];  // null: nothing to do
      char* to[batch];          // in the first destination; null: not there
      Walk ahead = walk;
#pragma unroll
      for (int j = 0; j < batch; ++j, ahead.next()) {
        const int row = min(ahead.row, work.rows - 1);
        const std::int64_t col = ahead.chunk * length;
        const char* const source = row_of(sources[0], work.spot, args.tile_rows, row);
        char* const dest = row_of(args.to, work.spot, args.tile_rows, row);
        // Most rows have no destination in a pass of rows to one rank of several.
        const bool leads = (dest != nullptr) | (args.to.dests > 1);
        const bool moves = (ahead.row < work.rows) & (source != nullptr) & leads;
        from[j] = moves ? source + (skipped + col) * std::int64_t{sizeof(T)} : nullptr;
        to[j] = dest != nullptr ? dest + (indented + col) * std::int64_t{sizeof(T)} : nullptr;
      }
      Chunk<T, length> chunk[batch];
      ahead = walk;
#pragma unroll
      for (int j = 0; j < batch; ++j, ahead.next())
        if (from[j] != nullptr) load(chunk[j], from[j], work.cols - ahead.chunk * length);
#pragma unroll
      for (int j = 0; j < batch; ++j, walk.next()) {
        if (from[j] == nullptr) continue;
        if (to[j] != nullptr) store(chunk[j], to[j], work.cols - walk.chunk * length);
        if (args.to.dests > 1) store_all(args, work, {walk.row, walk.chunk * length}, chunk[j], 1);
      }
    }
  }
};

/// The same by bulk copies, where rows are whole. Apart from Copy, whose loads in flight take most registers.
template <class T>
struct BulkCopy {
  using ByRegisters = Copy<T, 2>;

  static __device__ __forceinline__ void survey(const ElementwiseArgs& args, const Route* sources,
                                                const TileWork& work, TileLines& lines, int lane) {
    survey_rows(args, work, static_cast<int>(sizeof(T)), lines, lane, [&](int row) {
      return reinterpret_cast<std::uintptr_t>(ByRegisters::columns_of(args, sources[0], work, row));
    });
  }
  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    const auto source_of = [&](const TileWork& work) {
      return [&](int row) { return ByRegisters::columns_of(args, sources[0], work, row); };
    };
    copy_tiles<T>(args, ring, source_of,
                  [&](const TileWork& work) { ByRegisters::tile(args, sources, work); });
  }
};

/// Scale, bias, activation and rounding of the chunk at a column of the tile.
template <class T, int length>
__device__ __forceinline__ Chunk<T, length> finished(const ElementwiseArgs& args, const TileWork& work,
                                                     int tile_col, float (&x)[length]) {
  // Also by 1, which changes no bit: a branch for each chunk would cost as much.
#pragma unroll
  for (int i = 0; i < length; ++i) x[i] *= args.scale;
  if (args.bias != nullptr) {
    const std::int64_t col = std::int64_t{work.spot.n} * args.tile_cols + tile_col;
    Chunk<T, length> bias;
    load<Reuse::often>(bias, static_cast<const char*>(args.bias) + col * std::int64_t{sizeof(T)},
                       work.cols - tile_col);
    add(x, bias);
  }
  activate(args.activate, x);
  return narrowed<T>(x);
}

/// Sums sources of type S in their order in fp32, then applies scale, bias and activation, and rounds once to
/// T. A chunk of the narrower type has 16 bytes.
template <class S, class T>
struct Sum {
  static constexpr int length =
      vector_bytes / static_cast<int>(sizeof(S) < sizeof(T) ? sizeof(S) : sizeof(T));
  using Source = Chunk<S, length>;
  using Result = Chunk<T, length>;
  static constexpr int group =
      // sources whose loads are in flight together
      4 * vector_bytes / Source::bytes;

  /// Called by the whole scheduler warp, one lane for each source and destination.
  static __device__ __forceinline__ void survey(const ElementwiseArgs& args, const Route* sources,
                                                const TileWork& work, TileLines& lines, int lane) {
    bool whole = sum_depth(args.room, args.source_count, Source::bytes) >= 2 && work.cols % length == 0 &&
                 args.to.dests <= max_sources && one_piece(args.to);
    for (int s = lane; s < args.source_count; s += 32) {
      const char* const row = row_of(sources[s], work.spot, args.tile_rows, 0);
      lines.from[s] = row + first_col(sources[s], work.spot, args.tile_cols) * std::int64_t{sizeof(S)};
      whole = whole && row != nullptr && aligned(lines.from[s]) && one_piece(sources[s]) &&
              sources[s].row_bytes == sources[0].row_bytes;
    }
    for (int d = lane; d < min(args.to.dests, max_sources); d += 32) {
      char* const row = row_of(args.to, work.spot, args.tile_rows, 0, d);
      const std::int64_t skipped = first_col(args.to, work.spot, args.tile_cols) * std::int64_t{sizeof(T)};
      lines.to[d] = row == nullptr ? nullptr : row + skipped;
      whole = whole && aligned(lines.to[d]);
    }
    whole = __all_sync(~0u, whole);
    if (lane == 0) lines.whole = whole;
  }
  static __device__ __forceinline__ bool one_piece(const Route& route) {
    return (route.table == nullptr || route.pieces == 1) && route.row_bytes % vector_bytes == 0;
  }

  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    const int depth = sum_depth(args.room, args.source_count, Source::bytes);
    for_each_tile(ring, [&](int slot, const TileWork& work) {
      const TileLines& lines = ring.lines[slot];
      if (!lines.whole)
        in_registers(args, sources, work);
      else if (depth >= 6)
        stream<6>(args, sources[0].row_bytes, work, lines);
      else if (depth >= 4)
        stream<4>(args, sources[0].row_bytes, work, lines);
      else if (depth == 3)
        stream<3>(args, sources[0].row_bytes, work, lines);
      else
        stream<2>(args, sources[0].row_bytes, work, lines);
    });
  }

  /// Each copy thread keeps asynchronous copies of `depth` chunks of all sources in flight. They go to the
  /// thread's own slots in shared memory, so no other thread waits for them.
  template <int depth>
  static __device__ __forceinline__ void stream(const ElementwiseArgs& args, std::int64_t row_bytes,
                                                const TileWork& work, const TileLines& lines) {
    extern __shared__ __align__(vector_bytes) char room[];
    constexpr int words = Source::bytes / vector_bytes, apart = copy_threads * vector_bytes;
    const int sources = args.source_count, slot_bytes = sources * words * apart;
    const std::uint32_t mine = ptx::shared_address(room) + threadIdx.x * vector_bytes;
    Walk walk(work, length), ahead = walk;
    const auto fetch = [&](std::uint32_t to) {
      if (ahead.row < work.rows) {
        const std::int64_t offset = ahead.row * row_bytes + ahead.chunk * Source::bytes;
#pragma unroll 1
        for (int s = 0; s < sources; ++s)
#pragma unroll
          for (int i = 0; i < words; ++i, to += apart)
            ptx::copy_async(to, lines.from[s] + offset + i * vector_bytes);
        ahead.next();
      }
      ptx::close_copy_group();
    };
#pragma unroll 1
    for (int d = 0; d < depth; ++d) fetch(mine + d * slot_bytes);
    for (std::uint32_t slot = mine; walk.row < work.rows; walk.next()) {
      ptx::await_copy_groups<depth - 1>();
      float x[length] = {};
      const Factors factors(args, work, walk.row);
      std::uint32_t at = slot;
#pragma unroll 1
      for (int s = 0; s < sources; ++s) {
        Source chunk;
#pragma unroll
        for (int i = 0; i < words; ++i, at += apart) {
          const uint4 part = ptx::ld_shared_v4(at);
          chunk.word[4 * i] = part.x;
          chunk.word[4 * i + 1] = part.y;
          chunk.word[4 * i + 2] = part.z;
          chunk.word[4 * i + 3] = part.w;
        }
        add(x, chunk, factors.of(s));
      }
      const Result sum = finished<T>(args, work, walk.chunk * length, x);
      const std::int64_t offset = walk.row * args.to.row_bytes + walk.chunk * Result::bytes;
#pragma unroll 1
      for (int d = 0; d < args.to.dests; ++d)
        if (char* const to = lines.to[d])
#pragma unroll
          for (int i = 0; i < Result::words; i += 4)
            ptx::store(to + offset + i * 4,
                       make_uint4(sum.word[i], sum.word[i + 1], sum.word[i + 2], sum.word[i + 3]));
      fetch(slot);  // after the stores, which use all data of the slot
      slot = slot == mine + (depth - 1) * slot_bytes ? mine : slot + slot_bytes;
    }
  }

  static __device__ __forceinline__ void in_registers(const ElementwiseArgs& args, const Route* sources,
                                                      const TileWork& work) {
    for (Walk walk(work, length); walk.row < work.rows; walk.next()) {
      const Spot at{walk.row, walk.chunk * length};
      float x[length] = {};
      const Factors factors(args, work, walk.row);
      for (int s = 0; s < args.source_count; s += group) {
        Source chunk[group];
#pragma unroll
        for (int i = 0; i < group; ++i)
          if (s + i < args.source_count) load_from(args, sources[s + i], work, at, chunk[i]);
#pragma unroll
        for (int i = 0; i < group; ++i)
          if (s + i < args.source_count) add(x, chunk[i], factors.of(s + i));
      }
      store_all(args, work, at, finished<T>(args, work, at.col, x));
    }
  }
};

/// Sums sources of type N, or f32 where Route::wide, in their order in fp32, and finishes as Sum does. Chunks
/// in flight are in registers.
template <class N, class T>
struct MixedSum {
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(N));
  static constexpr int group = 4;  // sources whose loads are in flight together
  using Narrow = Chunk<N, length>;
  using Wide = Chunk<float, length>;

  static __device__ __forceinline__ void survey(const ElementwiseArgs&, const Route*, const TileWork&,
                                                TileLines&, int) {}
  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    for_each_tile(ring, [&](int, const TileWork& work) { tile(args, sources, work); });
  }
  static __device__ __forceinline__ void tile(const ElementwiseArgs& args, const Route* sources,
                                              const TileWork& work) {
    for (Walk walk(work, length); walk.row < work.rows; walk.next()) {
      const Spot at{walk.row, walk.chunk * length};
      float x[length] = {};
      const Factors factors(args, work, walk.row);
      for (int s = 0; s < args.source_count; s += group) {
        Wide words[group];
#pragma unroll
        for (int i = 0; i < group; ++i)
          if (s + i < args.source_count) load_words(args, sources[s + i], work, at, words[i]);
#pragma unroll
        for (int i = 0; i < group; ++i)
          if (s + i < args.source_count) add_words(sources[s + i], words[i], factors.of(s + i), x);
      }
      store_all(args, work, at, finished<T>(args, work, at.col, x));
    }
  }

  /// A chunk of type N takes the first words.
  static __device__ __forceinline__ void load_words(const ElementwiseArgs& args, const Route& source,
                                                    const TileWork& work, Spot at, Wide& words) {
    if (source.wide) {
      load_from(args, source, work, at, words);
      return;
    }
    Narrow chunk;
    load_from(args, source, work, at, chunk);
#pragma unroll
    for (int w = 0; w < Narrow::words; ++w) words.word[w] = chunk.word[w];
  }
  static __device__ __forceinline__ void add_words(const Route& source, const Wide& words, float factor,
                                                   float (&x)[length]) {
    if (source.wide) {
      add(x, words, factor);
      return;
    }
    Narrow chunk;
#pragma unroll
    for (int w = 0; w < Narrow::words; ++w) chunk.word[w] = words.word[w];
    add(x, chunk, factor);
  }
};

}  // namespace shingle::cuda
