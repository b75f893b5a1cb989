// RowMap: the matrix row of each virtual row of a GEMM.
//
// A row-sharded result belongs to `world` ranks, `stride` rows each. A reduce-scatter of a finished group of
// tiles needs the same number of rows of every rank in every tile. The rows of a tile are therefore picked
// from all shards: virtual rows run over blocks of `world` × `block` rows. The j-th `block` rows of such a
// block come from rank j's shard.
//
// The same map picks one rank's rows if blocks of rows are dealt to the ranks in turn. The map's `world` is
// then the number of these blocks. A map without one rank's rows has the shards of all others.
#pragma once

#include "shingle/grid/tile_grid.hpp"

namespace shingle {

/// A run of virtual rows that are also consecutive in the matrix. `matrix_row` is -1 for phantom rows: rows
/// beyond the last row of the matrix.
struct RowRun {
  std::int64_t virtual_row = 0;
  std::int64_t matrix_row = 0;
  std::int64_t rows = 0;
};

struct RowMap {
  std::int32_t world = 1;
  std::int64_t block = 1;  ///< rows of one rank in a full tile
  /// Rows of each rank that the map covers. Without `pitch`, virtual rows are [0, world · len).
  std::int64_t len = 0;
  std::int64_t stride = 0;  ///< matrix rows between the shards of neighbouring ranks
  std::int64_t base = 0;    ///< first row of each shard that the map covers
  std::int64_t limit = 0;   ///< rows of the matrix; rows from here on are phantom
  /// Not 0: every block is padded to this many virtual rows, and the padding is phantom. If tiles divide the
  /// pitch, no tile holds rows of two ranks.
  std::int64_t pitch = 0;
  /// Not negative: the shard of this number is left out, and `world` counts the others.
  std::int32_t without = -1;

  /// Virtual row i is matrix row base + i, up to `limit`.
  SHINGLE_HD static constexpr RowMap identity(std::int64_t rows, std::int64_t base = 0) {
    return {1, larger(rows, 1), rows, 0, base, base + rows};
  }

  SHINGLE_HD constexpr std::int64_t rows() const {
    return world * (pitch > 0 ? ceil_div(len, block) * pitch : len);
  }

  SHINGLE_HD constexpr bool operator==(const RowMap& o) const {
    return world == o.world && block == o.block && len == o.len && stride == o.stride && base == o.base &&
           limit == o.limit && pitch == o.pitch && without == o.without;
  }

  /// First matrix row of the j-th shard that the map covers.
  SHINGLE_HD constexpr std::int64_t shard_at(std::int64_t j) const {
    return (without >= 0 && j >= without ? j + 1 : j) * stride + base;
  }

  /// The longest run that starts at a virtual row, of `count` rows at most.
  SHINGLE_HD constexpr RowRun run_at(std::int64_t virtual_row, std::int64_t count) const {
    if (pitch > 0) {
      const std::int64_t first = virtual_row / (world * pitch) * block, i = virtual_row % pitch;
      const std::int64_t size = smaller(block, len - first);
      const std::int64_t row = shard_at(virtual_row / pitch % world) + first + i;
      if (i >= size || row >= limit) return {virtual_row, -1, smaller(count, pitch - i)};
      return {virtual_row, row, smaller(smaller(count, size - i), limit - row)};
    }
    const std::int64_t t = virtual_row / (world * block);
    const std::int64_t size = smaller(block, len - t * block);  // the last block may be short
    const std::int64_t rest = virtual_row - t * world * block;
    const std::int64_t rank = rest / size, i = rest % size;
    const std::int64_t row = shard_at(rank) + t * block + i;
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
