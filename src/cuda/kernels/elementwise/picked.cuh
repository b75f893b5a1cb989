// Work of the copy warps on a tile whose sources are picked by an index (placement::Indexed).
#pragma once

#include "move.cuh"

namespace shingle::cuda {

/// What the index says of a row of the grid, for each source.
__device__ __forceinline__ const std::int32_t* picks_of(const ElementwiseArgs& args, const TileWork& work,
                                                        int row) {
  return args.index + (std::int64_t{work.spot.m} * args.tile_rows + row) * args.index_row;
}

/// Loads a chunk of the row that was picked.
template <class T, int length>
__device__ __forceinline__ void load_picked(const ElementwiseArgs& args, const Route& source,
                                            const TileWork& work, std::int32_t picked, int col,
                                            Chunk<T, length>& chunk) {
  const char* const row = source.base + source.shift + picked * source.row_bytes;
  load(chunk, row + (std::int64_t{work.spot.n} * args.tile_cols + col) * std::int64_t{sizeof(T)},
       work.cols - col);
}

/// Copies the rows that one source has, through registers. T: any type with the size of an element. `batch`:
/// loads in flight in a thread.
template <class T, int batch = 8>
struct PickedCopy {
  static constexpr int length = Copy<T>::length;

  static __device__ __forceinline__ void survey(const ElementwiseArgs&, const Route*, const TileWork&,
                                                TileLines&, int) {}
  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    for_each_tile(ring, [&](int, const TileWork& work) { tile(args, sources[0], work); });
  }
  /// True if a row of the tile is picked. Called by whole warps.
  static __device__ __forceinline__ bool any_picked(const ElementwiseArgs& args, const TileWork& work) {
    bool any = false;
    for (int row = static_cast<int>(threadIdx.x) % 32; row < work.rows; row += 32)
      any |= *picks_of(args, work, row) >= 0;
    return __any_sync(~0u, any);
  }
  /// Looks up a batch before its first load, as Copy does. Slots without a token follow each other, so many
  /// tiles have none: where a thread has several batches, a warp looks at all rows first.
  static __device__ __forceinline__ void tile(const ElementwiseArgs& args, const Route& source,
                                              const TileWork& work) {
    if (work.rows * work.cols > copy_threads * batch * length && !any_picked(args, work)) return;
    for (Walk walk(work, length); walk.row < work.rows;) {
      std::int32_t picked[batch];
      Walk ahead = walk;
#pragma unroll
      for (int j = 0; j < batch; ++j, ahead.next()) {
        const int row = min(ahead.row, work.rows - 1);
        const bool leads = (row_of(args.to, work.spot, args.tile_rows, row) != nullptr) | (args.to.dests > 1);
        const std::int32_t from = *picks_of(args, work, row);
        picked[j] = (ahead.row < work.rows) & leads ? from : no_row;
      }
      Chunk<T, length> chunk[batch];
      ahead = walk;
#pragma unroll
      for (int j = 0; j < batch; ++j, ahead.next())
        if (picked[j] >= 0) load_picked(args, source, work, picked[j], ahead.chunk * length, chunk[j]);
#pragma unroll
      for (int j = 0; j < batch; ++j, walk.next())
        if (picked[j] >= 0) store_all(args, work, {walk.row, walk.chunk * length}, chunk[j]);
    }
  }
};

/// The same by bulk copies, as BulkCopy.
template <class T>
struct PickedBulkCopy {
  /// Before the gates open, so without a look at the index.
  static __device__ __forceinline__ void survey(const ElementwiseArgs& args, const Route* sources,
                                                const TileWork& work, TileLines& lines, int lane) {
    const Route& source = sources[0];
    survey_rows(args, work, static_cast<int>(sizeof(T)), lines, lane, [&](int) {
      return reinterpret_cast<std::uintptr_t>(source.base + source.shift + indent_of(args, work)) |
             static_cast<std::uintptr_t>(source.row_bytes);
    });
  }
  static __device__ __forceinline__ std::int64_t indent_of(const ElementwiseArgs& args,
                                                           const TileWork& work) {
    return std::int64_t{work.spot.n} * args.tile_cols * std::int64_t{sizeof(T)};
  }
  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    const auto source_of = [&](const TileWork& work) {
      return [&](int row) -> const char* {
        const std::int32_t picked = *picks_of(args, work, row);
        if (picked < 0) return nullptr;
        const Route& source = sources[0];
        return source.base + source.shift + picked * source.row_bytes + indent_of(args, work);
      };
    };
    copy_tiles<T>(args, ring, source_of,
                  [&](const TileWork& work) { PickedCopy<T, 2>::tile(args, sources[0], work); });
  }
};

/// Sums the rows that the sources have, as Sum does. Rows of tokens that do not exist are not stored.
template <class S, class T>
struct PickedSum {
  static constexpr int length = Sum<S, T>::length, group = Sum<S, T>::group;

  static __device__ __forceinline__ void survey(const ElementwiseArgs&, const Route*, const TileWork&,
                                                TileLines&, int) {}
  static __device__ __forceinline__ void run(const ElementwiseArgs& args, const Route* sources,
                                             TileRing& ring) {
    for_each_tile(ring, [&](int, const TileWork& work) {
      if (args.source_count <= group / 2)
        tile<3, group / 2>(args, sources, work);
      else
        tile<2, group>(args, sources, work);
    });
  }
  /// A thread has `batch` chunks in flight, and of each the loads of `some` sources.
  template <int batch, int some>
  static __device__ __forceinline__ void tile(const ElementwiseArgs& args, const Route* sources,
                                              const TileWork& work) {
    for (Walk walk(work, length); walk.row < work.rows;) {
      float x[batch][length] = {};
      bool exists[batch] = {};
      for (int s = 0; s < args.source_count; s += some)
        add_some<batch, some>(args, sources, work, walk, s, x, exists);
#pragma unroll
      for (int j = 0; j < batch; ++j, walk.next()) {
        if (!exists[j]) continue;
        const Spot at{walk.row, walk.chunk * length};
        store_all(args, work, at, finished<T>(args, work, at.col, x[j]));
      }
    }
  }

 private:
  /// Adds the sources from s on to the chunks of a batch: first all lookups, then all loads.
  template <int batch, int some>
  static __device__ __forceinline__ void add_some(const ElementwiseArgs& args, const Route* sources,
                                                  const TileWork& work, const Walk& walk, int s,
                                                  float (&x)[batch][length], bool (&exists)[batch]) {
    std::int32_t picked[batch][some];
    Walk ahead = walk;
#pragma unroll
    for (int j = 0; j < batch; ++j, ahead.next()) {
      const bool inside = ahead.row < work.rows;
      const int row = min(ahead.row, work.rows - 1);
      const std::int32_t* const picks = picks_of(args, work, row);
#pragma unroll
      for (int i = 0; i < some; ++i) {
        const std::int32_t from = picks[min(s + i, args.source_count - 1)];
        picked[j][i] = inside && s + i < args.source_count ? from : no_row;
        if (s + i == 0) exists[j] = inside && from != no_token;
      }
    }
    Chunk<S, length> chunk[batch][some];
    ahead = walk;
#pragma unroll
    for (int j = 0; j < batch; ++j, ahead.next())
#pragma unroll
      for (int i = 0; i < some; ++i)
        if (picked[j][i] >= 0)
          load_picked(args, sources[s + i], work, picked[j][i], ahead.chunk * length, chunk[j][i]);
    ahead = walk;
#pragma unroll
    for (int j = 0; j < batch; ++j, ahead.next()) {
      const Factors factors(args, work, ahead.row);
#pragma unroll
      for (int i = 0; i < some; ++i)
        if (picked[j][i] >= 0) add(x[j], chunk[j][i], factors.of(s + i));
    }
  }
};

}  // namespace shingle::cuda
