// Expands the hooks of a plan's tiled steps into the tables that kernels read (kernels/hooks.hpp).
#pragma once

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/kernels/hooks.hpp"
#include "cuda/memory/memory.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"

namespace shingle::cuda {

/// Owner of device memory for tables. Belongs to the device that is current at construction.
class TableMemory {
 public:
  /// Copies the values to the device. The copy is complete on return.
  template <class T>
  const T* put(const std::vector<T>& values) {
    return static_cast<const T*>(put(values.data(), values.size() * sizeof(T)));
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  const void* put(const void* values, std::size_t bytes);

  Stream stream_;  // a stream for the copies, so that they wait for no other work
  std::vector<DeviceMemory> blocks_;
  std::size_t used_ = 0;  // bytes used of the last block
  std::int64_t bytes_ = 0;
};

/// The tiles of a kernel: positions of the plan's grid in the kernel's order, and the map from a tile's rows
/// to the kernel's rows.
///
/// With `parts`, row v of a tile of `rows` rows is the kernel's row (v / (rows / parts)) · part_rows + v mod
/// (rows / parts). A ragged tile leaves a gap after each part.
struct Tiling {
  const TileGrid& grid;
  std::vector<std::int64_t> positions;
  std::int32_t height = 0;  ///< of a whole tile
  std::int32_t parts = 1;
  std::int32_t part_rows = 0;

  std::int64_t kernel_row(std::int64_t row, std::int64_t rows) const {
    if (parts == 1) return row;
    const std::int64_t part = rows / parts;
    return row / part * part_rows + row % part;
  }
};

/// All positions of a grid.
std::vector<std::int64_t> all_positions(const TileGrid& grid);

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
