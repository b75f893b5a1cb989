// The hooks of a plan's tiled steps, expanded into the tables that kernels read (kernels/hooks.hpp).
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

/// Memory of the device that is current when it is made, for tables that live as long as it does.
class Arena {
 public:
  /// Copies the values there; they are there when it returns.
  template <class T>
  const T* put(const std::vector<T>& values) {
    return static_cast<const T*>(put(values.data(), values.size() * sizeof(T)));
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  const void* put(const void* values, std::size_t bytes);

  Stream stream_;  // of the copies: they wait for nobody else's work
  std::vector<DeviceMemory> blocks_;
  std::size_t used_ = 0;  // of the last block
  std::int64_t bytes_ = 0;
};

/// The tiles of a kernel: positions of the plan's grid in the order in which it takes them; and which of a
/// tile's rows its row i is. With `parts`, row v of a tile that is `rows` high is the kernel's row
/// (v / (rows / parts)) · part_rows + v mod (rows / parts): a ragged tile leaves a gap behind each part.
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

/// What the tables of one rank are made from.
struct Tables {
  const Plan& plan;
  const Memory& memory;
  Arena& arena;
  int parity = 0;

  /// Where tiles lie. Throws Unsupported where that is in memory which this process cannot reach.
  /// Of a product the rows lie alike at all destinations, as the GEMM asks for: a plan names one slice for
  /// all.
  Route route(const Placement& at, const Tiling& tiling) const;
  /// How many rows of each tile, over all destinations, lie with other ranks; null where none do.
  const std::int32_t* leaving(const Placement& at, const Tiling& tiling, int rank) const;
  /// Rows that several passes move, each with one source, as those of one: by tile, as many rows as the tile
  /// with most has.
  struct Moves {
    Route from, to;
    std::int32_t rows = 0;
  };
  /// Nothing where one of them has several destinations, or two of them store to the same place.
  std::optional<Moves> moves(const std::vector<std::pair<Placement, Placement>>& passes,
                             const Tiling& tiling) const;
  /// What tiles await on a rank, null where nothing.
  GateTable gates(const std::vector<TileGate>& gates, const Tiling& tiling, int rank) const;
  NotifyTable notifies(const std::vector<TileNotify>& notifies, const Tiling& tiling, int rank) const;
};

}  // namespace shingle::cuda
