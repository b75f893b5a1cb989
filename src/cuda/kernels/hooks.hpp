// Hooks of a tiled kernel (docs/concepts/plan.md) as tables in device memory, made once for each plan. Plain
// data in C++17: host and device read it.
#pragma once

#include <cstdint>

namespace shingle::cuda {

/// Distances in bytes from the addresses that tables and commands hold to the matrices of a call, by the
/// matrix's role. Zero for internal buffers and for matrices that are bound.
struct Shifts {
  static constexpr int roles = 22;
  std::int64_t of[roles] = {};
  std::int32_t tokens = -1;  ///< that the rank has in the call; -1: as many as the plan's
};

/// What an index of an AssignSlots step says instead of a row (plan.hpp).
inline constexpr std::int32_t no_row = -1;    ///< none
inline constexpr std::int32_t no_token = -2;  ///< none, as the token does not exist: its row is left alone

/// Addresses of a tile's rows. Without a table, row R and column C of the grid are at base + R · row_bytes +
/// C elements. With a table, every `piece_rows` rows of a tile have an entry for each destination; null:
/// these rows have no address. Row i of a piece is i · row_bytes after the entry. Entries are by tile (by
/// position in the grid's order) or by row of tiles. The former point at the tile's column 0, the latter at
/// the grid's column 0.
struct Route {
  char* base = nullptr;
  char* const* table = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t shift = 0;  ///< bytes, added to base and to every entry
  std::int32_t piece_rows = 1;
  std::int32_t pieces = 1;  ///< in a tile
  std::int32_t dests = 1;
  bool by_tile = false;
  bool wide = false;        ///< the rows are f32; read for sources of mixed types only
  std::uint8_t matrix = 0;  ///< role of the matrix, an index of Shifts
};

/// Counters to add 1 to once a tile is visible: `count` pointers for each position; null: none.
struct NotifyTable {
  std::uint32_t* const* counters = nullptr;
  std::int32_t count = 0;
  bool system = false;  ///< true if readers are other devices, copy engines or the host
};

/// A counter to await until it reaches target + epoch · growth. A null counter awaits nothing.
struct Target {
  const std::uint32_t* counter = nullptr;
  std::uint32_t target = 0;
  std::uint32_t growth = 0;
};

/// Targets that a tile awaits before its input is loaded: `count` for each position.
struct GateTable {
  const Target* targets = nullptr;
  std::int32_t count = 0;
};

/// Record of a wait that passed its deadline, in memory that the host reads.
struct Stall {
  std::uint32_t seen = 0;
  std::uint32_t wanted = 0;
  const std::uint32_t* counter = nullptr;
  // If the calls of two ranks differ, both calls (struct Call of sync.hpp):
  std::uint64_t own_call = 0;
  std::uint64_t other_call = 0;
};

/// Words that every wait of a rank uses. If `abort` is not zero, waits end, and the results are invalid.
struct Watch {
  const std::uint32_t* epoch = nullptr;       ///< of the executable or the context, in device memory
  std::uint32_t* abort = nullptr;             ///< in memory that host and devices read and write
  Stall* stall = nullptr;                     ///< in such memory, too; the first wait to fail writes it
  const std::uint64_t* timeout_ns = nullptr;  ///< in such memory, too: timeout of one wait
  /// In device memory, 0 until a wait fails. Not in host memory: not every bus supports atomics.
  std::uint32_t* claim = nullptr;
};

/// Coordinates of the tile at a position; `m` is negative if the position has no tile.
struct TileAt {
  std::int32_t m = 0;
  std::int32_t n = 0;
};

}  // namespace shingle::cuda
