// Expands the hooks of a plan's tiled steps into the tables that kernels read (kernels/hooks.hpp).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cuda/kernels/hooks.hpp"
#include "cuda/memory/memory.hpp"
#include "shingle/plan/placement.hpp"
#include "table_memory.hpp"

namespace shingle::cuda {

/// The tiles of a kernel: positions of the plan's grid in the kernel's order, and the map from a tile's rows
/// to the kernel's rows.
///
/// With `parts`, row v of a tile of `rows` rows is the kernel's row (v / part) · part_rows + v mod part, with
/// part = ceil(rows / parts). A ragged tile leaves a gap after each part.
struct Tiling {
  const TileGrid& grid;
  const std::vector<Tile>& tiles;  ///< by position of the grid
  std::vector<std::int64_t> positions;
  std::int32_t height = 0;  ///< of a whole tile
  std::int32_t parts = 1;
  std::int32_t part_rows = 0;
  const Gemm* grouped = nullptr;  ///< the grouped product that has the tiles

  /// What a tile covers of its output. Of a grouped product, the last tile of a group may have fewer rows.
  TileRect rect(const Tile& tile) const {
    return grouped != nullptr ? product_tile(*grouped, tile).rect : grid.rect(tile);
  }
  /// True if the kernel takes rows behind a tile's last for rows of the output: those that pad a group.
  bool pads(const TileRect& rect) const { return grouped != nullptr && rect.rows < height; }
  const Tile& tile(std::int64_t position) const { return tiles[static_cast<std::size_t>(position)]; }
  std::int64_t kernel_row(std::int64_t row, std::int64_t rows) const {
    if (parts == 1) return row;
    const std::int64_t part = ceil_div(rows, parts);  // the last ones may be shorter
    return row / part * part_rows + row % part;
  }
};

/// All positions of a grid.
std::vector<std::int64_t> all_positions(const TileGrid& grid);
/// The tiles at some positions, as kernels take them. Phantom tiles are {-1, -1} if `marked`.
std::vector<TileAt> order_of(const Tiling& tiling, bool marked);

/// Makes the tables of one rank.
struct Tables {
  const Plan& plan;
  const Memory& memory;
  TableMemory& table_memory;
  int parity = 0;

  /// Addresses of the tiles. Throws Unsupported if a tile is in memory that this process cannot access.
  ///
  /// The GEMM requires the same row layout at all destinations. A Gemm step meets that, as a plan names one
  /// slice for all ranks.
  Route route(const Placement& at, const Tiling& tiling) const;
  /// Addresses of the tiles of a product, some of which may be sums. Both have the same layout of rows. Sums
  /// have the destinations of their places one after another, those in matrices of the user first.
  Route route(const Gemm& step, const Tiling& tiling) const;
  /// Number of rows of each tile that are stored on other ranks, summed over destinations; null if there are
  /// none.
  const std::int32_t* leaving(const Gemm& step, const Tiling& tiling, int rank) const;
  /// Rows of several passes, each with one source, merged into one pass. Every tile has as many rows as the
  /// largest.
  struct Moves {
    Route from, to;
    std::int32_t rows = 0;
  };
  /// Nothing if a pass has several sources or destinations, or if two rows have the same destination.
  std::optional<Moves> moves(const std::vector<std::pair<Placement, Placement>>& passes,
                             const Tiling& tiling) const;
  /// Counters and targets that each tile awaits on a rank; null if there are none.
  GateTable gates(const std::vector<TileGate>& gates, const Tiling& tiling, int rank) const;
  NotifyTable notifies(const std::vector<TileNotify>& notifies, const Tiling& tiling, int rank) const;
};

}  // namespace shingle::cuda
