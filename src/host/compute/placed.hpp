// A placement in memory: the rows of a tile on the ranks that hold them.
#pragma once

#include <cstdint>
#include <vector>

#include "host/executor/memory.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

/// A tile to expand placements with.
struct PlacedTile {
  const TileGrid& grid;
  const Routing* routing;
  std::int64_t position;
  TileRect rect;  ///< as the placement counts rows
};

/// A placement, with its buffer in the memory of every rank that it reaches.
struct Placed {
  Placement at;
  std::vector<View> by_rank;
  DType type = DType::f32;

  Placed() = default;
  Placed(const Plan& plan, const Memory& memory, const Placement& placement, std::uint32_t epoch);

  const View& on(std::int32_t rank) const { return by_rank[static_cast<std::size_t>(rank)]; }
  /// Calls visit(Piece). Of several ranks that hold the same rows, only the first is visited.
  template <class Visit>
  void for_each_piece(const PlacedTile& tile, Visit&& visit) const {
    shingle::for_each_piece(first_, tile.grid, tile.routing, tile.position, tile.rect, visit);
  }
  /// Addresses of the tile's rows, at its first column; null: nowhere.
  void locate(const PlacedTile& tile, std::byte** rows) const;
  /// Copies a block of the tile, in elements from its corner, to all ranks that hold the same rows: from the
  /// first of them or, of several places of the tile, from the first rank of the `first` place.
  void store_again(const PlacedTile& tile, const TileRect& block) const { store_again(tile, block, *this); }
  void store_again(const PlacedTile& tile, const TileRect& block, const Placed& first) const;
  /// Bytes of the tile on ranks other than `rank`.
  std::int64_t crossing(const PlacedTile& tile, int rank) const;

 private:
  Placement first_;
};

}  // namespace shingle::host
