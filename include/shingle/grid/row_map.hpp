// Which row of a matrix a GEMM's virtual row is.
//
// A row-sharded result belongs to `world` ranks, `stride` rows each. If every tile is to hold the same number
// of rows of every rank, so that a group of tiles can be reduce-scattered as soon as it is done, the tile's
// rows have to be picked from all shards: virtual rows run over blocks of `world` × `block` rows, of which
// the j-th `block` rows come from rank j's shard. The other way round, one rank's blocks of rows that are
// dealt to the ranks in turn are picked by a map whose `world` is the number of the blocks.
#pragma once

#include "shingle/grid/tile_grid.hpp"

namespace shingle {

/// A run of consecutive virtual rows that are also consecutive in the matrix. `matrix_row` is -1 where the
/// rows are phantom: beyond the last row of the matrix.
struct RowRun {
  std::int64_t virtual_row = 0;
  std::int64_t matrix_row = 0;
  std::int64_t rows = 0;
};

struct RowMap {
  std::int32_t world = 1;
  std::int64_t block = 1;   ///< rows of one rank in a full tile
  std::int64_t len = 0;     ///< rows of each rank that the map covers; virtual rows are [0, world · len)
  std::int64_t stride = 0;  ///< matrix rows between the shards of neighbouring ranks
  std::int64_t base = 0;    ///< first row of each shard that the map covers
  std::int64_t limit = 0;   ///< rows of the matrix; rows from here on are phantom
  /// Not 0: every block is padded to this many virtual rows (no tile then holds rows of two ranks, if tiles
  /// divide it); the padding is phantom.
  std::int64_t pitch = 0;

  /// Virtual row i is matrix row base + i, up to `limit`.
  SHINGLE_HD static constexpr RowMap identity(std::int64_t rows, std::int64_t base = 0) {
    return {1, larger(rows, 1), rows, 0, base, base + rows};
  }

  SHINGLE_HD constexpr std::int64_t rows() const {
    return world * (pitch > 0 ? ceil_div(len, block) * pitch : len);
  }

  SHINGLE_HD constexpr bool operator==(const RowMap& o) const {
    return world == o.world && block == o.block && len == o.len && stride == o.stride && base == o.base &&
           limit == o.limit && pitch == o.pitch;
  }

  /// The longest run that starts at a virtual row, at most `count` rows.
  SHINGLE_HD constexpr RowRun run_at(std::int64_t virtual_row, std::int64_t count) const {
    if (pitch > 0) {
      const std::int64_t first = virtual_row / (world * pitch) * block, i = virtual_row % pitch;
      const std::int64_t size = smaller(block, len - first);
      const std::int64_t row = virtual_row / pitch % world * stride + base + first + i;
      if (i >= size || row >= limit) return {virtual_row, -1, smaller(count, pitch - i)};
      return {virtual_row, row, smaller(smaller(count, size - i), limit - row)};
    }
    const std::int64_t t = virtual_row / (world * block);
    const std::int64_t size = smaller(block, len - t * block);  // the last block may be short
    const std::int64_t rest = virtual_row - t * world * block;
    const std::int64_t rank = rest / size, i = rest % size;
    const std::int64_t row = rank * stride + base + t * block + i;
    const std::int64_t run = world == 1 ? smaller(count, len - virtual_row) : smaller(count, size - i);
    if (row >= limit) return {virtual_row, -1, run};
    return {virtual_row, row, smaller(run, limit - row)};
  }

  /// Calls visit(RowRun) for the runs of virtual rows [first, first + count), in order.
  template <class Visit>
  SHINGLE_HD constexpr void for_each_run(std::int64_t first, std::int64_t count, Visit&& visit) const {
    for (const std::int64_t end = first + count; first < end;) {
      const RowRun run = run_at(first, end - first);
      visit(run);
      first += run.rows;
    }
  }
};

}  // namespace shingle
