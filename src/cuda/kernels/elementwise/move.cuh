// What the movers of a tile do with it: copy it, or sum its sources.
#pragma once

#include "activation.cuh"
#include "chunk.cuh"
#include "tiles.cuh"

namespace shingle::cuda {

/// The chunks of a tile that fall to a mover. Neighbouring threads take neighbouring chunks of a row, then
/// the next row, so that warps read and write whole lines.
struct Walk {
  int across;  ///< threads beside each other in a row
  int down;    ///< rows under way together
  int chunks;  ///< of a row
  int first;
  int chunk;
  int row;

  __device__ Walk(const TileWork& work, int length) {
    const int thread = static_cast<int>(threadIdx.x);
    chunks = (work.cols + length - 1) / length;
    across = min(chunks, movers);
    down = movers / across;
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

template <class T, int length>
__device__ inline void store_all(const ElementwiseArgs& args, const TileWork& work, Spot at,
                                 const Chunk<T, length>& chunk) {
  const int col = first_col(args.to, work.spot, args.tile_cols) + at.col;
  for (int d = 0; d < args.to.dests; ++d)
    if (char* const row = row_of(args.to, work.spot, args.tile_rows, at.row, d))
      store(chunk, row + col * std::int64_t{sizeof(T)}, work.cols - at.col);
}

/// False where the source's row lies nowhere.
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

/// Reorders one source. T: any type of the elements' size.
template <class T>
struct Copy {
  static constexpr int batch = 8;  // loads under way in a thread
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(T));

  static __device__ __forceinline__ void tile(const ElementwiseArgs& args, const Route* sources,
                                              const TileWork& work) {
    for (Walk walk(work, length); walk.row < work.rows;) {
      Chunk<T, length> chunk[batch];
      bool there[batch];
      Walk ahead = walk;
#pragma unroll
      for (int j = 0; j < batch; ++j, ahead.next())
        there[j] = load_from(args, sources[0], work, {ahead.row, ahead.chunk * length}, chunk[j]);
#pragma unroll
      for (int j = 0; j < batch; ++j, walk.next())
        if (there[j]) store_all(args, work, {walk.row, walk.chunk * length}, chunk[j]);
    }
  }
};

/// Sums sources of type S in their order in fp32; bias, activation, and one rounding to T.
template <class S, class T>
struct Sum {
  static constexpr int batch = 2;
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(T));
  using Source = Chunk<S, length>;
  static constexpr int group =
      4 * vector_bytes / Source::bytes;  // sources whose loads are under way together

  static __device__ __forceinline__ void tile(const ElementwiseArgs& args, const Route* sources,
                                              const TileWork& work) {
    for (Walk walk(work, length); walk.row < work.rows;) {
      Spot at[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        at[j] = {walk.row, walk.chunk * length};
        walk.next();
      }
      float x[batch][length] = {};
      for (int s = 0; s < args.source_count; s += group) add_group(args, sources, work, at, s, x);
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (at[j].row < work.rows) finish(args, work, at[j], x[j]);
    }
  }

  static __device__ __forceinline__ void add_group(const ElementwiseArgs& args, const Route* sources,
                                                   const TileWork& work, const Spot (&at)[batch], int s,
                                                   float (&x)[batch][length]) {
    Source chunk[group][batch];
#pragma unroll
    for (int i = 0; i < group; ++i)
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (s + i < args.source_count) load_from(args, sources[s + i], work, at[j], chunk[i][j]);
#pragma unroll
    for (int i = 0; i < group; ++i)
#pragma unroll
      for (int j = 0; j < batch; ++j) add(x[j], chunk[i][j]);
  }

  static __device__ __forceinline__ void finish(const ElementwiseArgs& args, const TileWork& work, Spot at,
                                                float (&x)[length]) {
    if (args.bias != nullptr) {
      const std::int64_t col = std::int64_t{work.spot.n} * args.tile_cols + at.col;
      Chunk<T, length> bias;
      load<Reuse::often>(bias, static_cast<const char*>(args.bias) + col * std::int64_t{sizeof(T)},
                         work.cols - at.col);
      add(x, bias);
    }
    activate(args.activate, x);
    store_all(args, work, at, narrowed<T>(x));
  }
};

}  // namespace shingle::cuda
