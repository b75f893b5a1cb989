// Split-K: workers share the sums over K of tiles where whole tiles would leave some of them idle.
#pragma once

#include <vector>

#include "k_split.hpp"
#include "shingle/grid/tile_grid.hpp"

namespace shingle {

/// Tiles at the end of a product's order that are cut along K into equal parts. Workers take `rounds` parts
/// each, side by side: they walk through K in step, so that tiles in a row or column of the grid find their
/// operands in the cache. (Ranges of equal depth that begin anywhere in a tile, as in Stream-K, balance
/// better. But on H200 products of few waves took longer with them: every worker reads another place of K.)
struct SharedTiles {
  std::int64_t count = 0;  ///< 0: none
  std::int64_t parts = 1;  ///< of each
  std::int64_t rounds = 1;

  /// Depth of a worker's parts of products with K = k.
  constexpr double depth(double k) const {
    return k * static_cast<double>(rounds) / static_cast<double>(parts);
  }
};

/// The tiles that `workers` workers share in a product of `tiles` tiles: those of a last wave that is not
/// full.
///
/// A part covers at least 512 elements of K. There are at most 8 parts, because the last one adds up all
/// others. To leave a part's sums in memory takes as long as a depth of `leave`, and to add them as long as
/// `add`, whatever the tile. So short products are not shared. Kernels that cut all tiles alike have small
/// tiles, of which parts cost little: they share where each worker gets at most one part.
constexpr SharedTiles shared_tiles(KSplit how, std::int64_t tiles, std::int64_t k, std::int64_t workers) {
  constexpr std::int64_t shortest = 512, most = 8, leave = 500, add = 350;
  const std::int64_t rest = tiles % workers, longest = smaller(k / shortest, most);
  if (how == KSplit::none || rest == 0) return {};
  if (how == KSplit::all) {
    const std::int64_t parts = tiles < workers ? smaller(workers / tiles, longest) : 1;
    return parts > 1 ? SharedTiles{tiles, parts, 1} : SharedTiles{};
  }
  SharedTiles best;
  double least = static_cast<double>(k);
  for (std::int64_t parts = 2; parts <= longest; ++parts) {
    const SharedTiles shared{rest, parts, ceil_div(rest * parts, workers)};
    const double takes =
        shared.depth(static_cast<double>(k)) + static_cast<double>(shared.rounds * leave + (parts - 1) * add);
    if (takes < least) best = shared, least = takes;
  }
  return best;
}

/// A worker's part of a tile: steps [first, last) of its sum over K.
struct TilePart {
  std::int64_t tile = 0;
  std::int64_t first = 0, last = 0;
  std::int64_t part = 0, parts = 1;  ///< the tile's last part adds up the others
};

/// Deals a product's tiles, of `steps` steps each, to at most `workers` workers: the parts of each, in order.
/// The last part of a shared tile may reach beyond the tile's steps. Shared tiles may get fewer parts than
/// asked for, if they have too few steps.
///
/// A worker that adds up waits for workers with smaller indices only, so none waits in a circle, also if
/// workers with larger indices start only when others end. It does so after all its parts that others wait
/// for.
std::vector<std::vector<TilePart>> deal(std::int64_t tiles, std::int64_t steps, std::int64_t workers,
                                        const SharedTiles& shared);

}  // namespace shingle
