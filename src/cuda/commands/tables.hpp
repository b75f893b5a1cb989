// Expands the hooks of a plan's tiled steps into the tables that kernels read (kernels/hooks.hpp).
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/kernels/hooks.hpp"
#include "cuda/memory/memory.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"

namespace shingle::cuda {

/// Blocks of device memory for the tables of many plans. A plan that goes gives its blocks back. None is
/// freed before the end, as that would wait for the device.
class TableBlocks {
 public:
  static constexpr std::size_t block_bytes = std::size_t{256} << 10;  ///< of a block, at least

  struct Block {
    char* data = nullptr;
    std::size_t bytes = 0;
  };
  Block take(std::size_t bytes);
  void give(Block block) { free_.push_back(block); }
  /// Empty host memory for a block's tables, used before if possible: fresh pages cost more than tables.
  std::vector<char> take_staging();
  void give_staging(std::vector<char> staging);

 private:
  std::vector<DeviceMemory> slabs_;
  std::vector<Block> free_;
  std::vector<std::vector<char>> staging_;
};

/// Device memory for the tables of a plan. Tables are collected on the host, and copied together.
class TableMemory {
 public:
  /// Takes blocks from the pool; allocates them if it is null. The pool must outlive this object.
  explicit TableMemory(TableBlocks* pool = nullptr) : pool_(pool) {}
  ~TableMemory();
  TableMemory(const TableMemory&) = delete;
  TableMemory& operator=(const TableMemory&) = delete;

  /// Memory without values.
  char* reserve(std::size_t bytes);
  /// The address that the values will have on the device after commit().
  template <class T>
  const T* put(const std::vector<T>& values) {
    return static_cast<const T*>(put(values.data(), values.size() * sizeof(T)));
  }
  /// Enqueues the copy of all tables to the device; `settle` must wait until it is complete. `stream` must
  /// have no other work. No put() may follow.
  void commit(const Stream& stream, const std::function<void(const Stream&)>& settle);
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Block {
    TableBlocks::Block memory{};
    DeviceMemory owned{};        // empty: a block of the pool
    std::vector<char> tables{};  // not copied yet
  };
  Block new_block(std::size_t bytes);
  const void* put(const void* values, std::size_t bytes);

  TableBlocks* pool_;
  std::vector<Block> blocks_;  // the last one takes tables
  std::vector<Block> reserved_;
  std::int64_t bytes_ = 0;
};

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
  /// Number of rows of each tile that are stored on other ranks, summed over destinations; null if there are
  /// none.
  const std::int32_t* leaving(const Placement& at, const Tiling& tiling, int rank) const;
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
