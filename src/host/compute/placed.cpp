#include "placed.hpp"

#include <algorithm>
#include <cstring>

namespace shingle::host {

Placed::Placed(const Plan& plan, const Memory& memory, const Placement& placement, std::uint32_t epoch)
    : at(placement),
      by_rank(plan.ranks.size()),
      type(plan.buffers[static_cast<std::size_t>(placement.slice.buffer)].dtype),
      first_(first_replica(placement)) {
  for (const std::int32_t rank : ranks_of(placement, plan.world()))
    by_rank[static_cast<std::size_t>(rank)] = memory.buffer(placement.slice.buffer, rank, epoch);
}

void Placed::locate(const PlacedTile& tile, std::byte** rows) const {
  std::fill_n(rows, tile.rect.rows, nullptr);
  for_each_piece(tile, [&](const Piece& piece) {
    for (std::int64_t i = 0; i < piece.rows; ++i)
      rows[piece.tile_row + i] = on(piece.rank).at(piece.row + i, piece.col);
  });
}

void Placed::store_again(const PlacedTile& tile, const TileRect& block, const Placed& first) const {
  const bool own = &first == this;
  if (own && replicas(at).size() < 2) return;
  const View& source = first.on(first.first_.slice.rank);
  const std::int64_t down = first.at.slice.row - at.slice.row, right = first.at.slice.col - at.slice.col;
  shingle::for_each_piece(at, tile.grid, tile.routing, tile.position, tile.rect, [&](const Piece& piece) {
    if (own && piece.rank == first_.slice.rank) return;
    const View& other = on(piece.rank);
    const std::int64_t from = larger(piece.tile_row, block.row),
                       to = smaller(piece.tile_row + piece.rows, block.row + block.rows);
    for (std::int64_t row = piece.row + from - piece.tile_row; row < piece.row + to - piece.tile_row; ++row)
      std::memcpy(other.at(row, piece.col + block.col), source.at(row + down, piece.col + right + block.col),
                  static_cast<std::size_t>(block.cols) * size_bytes(type));
  });
}

std::int64_t Placed::crossing(const PlacedTile& tile, int rank) const {
  std::int64_t rows = 0;
  shingle::for_each_piece(at, tile.grid, tile.routing, tile.position, tile.rect, [&](const Piece& piece) {
    if (piece.rank != rank) rows += piece.rows;
  });
  return rows * tile.rect.cols * static_cast<std::int64_t>(size_bytes(type));
}

}  // namespace shingle::host
