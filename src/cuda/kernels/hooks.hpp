// The hooks of a tiled kernel (docs/concepts/plan.md), as tables that an executor lays into device memory
// once a plan. Plain data, C++17: host and device read it.
#pragma once

#include <cstdint>

namespace shingle::cuda {

/// Where the rows of a tile lie. Without a table: row R and column C of the grid at base + R · row_bytes + C
/// elements. With one: every `piece_rows` rows of a tile have an entry for each destination, null where they
/// go nowhere; row i of a piece is i · row_bytes further. Entries are by tile (the tile's position in the
/// grid's order; its column 0) or by row of tiles (column 0 of the grid).
struct Route {
  char* base = nullptr;
  char* const* table = nullptr;
  std::int64_t row_bytes = 0;
  std::int32_t piece_rows = 1;
  std::int32_t pieces = 1;  ///< of a tile
  std::int32_t dests = 1;
  bool by_tile = false;
};

/// Counts to add one to once a tile is visible: `count` of them by position, null for none.
struct NotifyTable {
  std::uint32_t* const* counters = nullptr;
  std::int32_t count = 0;
  bool system = false;  ///< whether readers are other devices, copy engines or the host
};

/// A count to await: target + epoch · growth. A null counter awaits nothing.
struct Target {
  const std::uint32_t* counter = nullptr;
  std::uint32_t target = 0;
  std::uint32_t growth = 0;
};

/// What tiles await before they read their input: `count` targets by position.
struct GateTable {
  const Target* targets = nullptr;
  std::int32_t count = 0;
};

/// What a wait that passed its deadline leaves behind, in memory that the host reads.
struct Stall {
  std::uint32_t seen = 0;
  std::uint32_t wanted = 0;
  const std::uint32_t* counter = nullptr;
};

/// What every wait of a rank looks at. Waits end when `abort` is not zero: the results are then void.
struct Watch {
  const std::uint32_t* epoch = nullptr;       ///< of the executable, in device memory
  std::uint32_t* abort = nullptr;             ///< in memory that the host reads and writes
  Stall* stall = nullptr;                     ///< likewise; the first wait to fail writes it
  const std::uint64_t* timeout_ns = nullptr;  ///< likewise: how long one wait may take
  std::uint32_t* claim = nullptr;  ///< in device memory, 0 until a wait fails: not every bus has atomics
};

/// Coordinates of a tile, by position; `m` is negative where the position holds no tile.
struct TileAt {
  std::int32_t m = 0;
  std::int32_t n = 0;
};

}  // namespace shingle::cuda
