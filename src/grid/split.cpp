#include "split.hpp"

#include <algorithm>

namespace shingle {

std::vector<std::vector<TilePart>> deal(std::int64_t tiles, std::int64_t steps, std::int64_t workers,
                                        const SharedTiles& shared) {
  const std::int64_t depth = ceil_div(steps, shared.parts), parts = ceil_div(steps, depth);
  const std::int64_t whole = tiles - shared.count, pieces = shared.count * parts;
  const std::int64_t most = larger(smaller(workers, larger(whole, pieces)), std::int64_t{1});
  std::vector<std::vector<TilePart>> hands(static_cast<std::size_t>(most));
  for (std::int64_t tile = 0; tile < whole; ++tile)
    hands[static_cast<std::size_t>(tile % most)].push_back({tile, 0, steps});
  // A tile's parts go to consecutive workers, so that its last one has the largest index.
  for (std::int64_t worker = 0; worker < most; ++worker) {
    std::vector<TilePart>& hand = hands[static_cast<std::size_t>(worker)];
    for (std::int64_t i = worker * pieces / most; i < (worker + 1) * pieces / most; ++i) {
      const std::int64_t part = i % parts;
      hand.push_back({whole + i / parts, part * depth, (part + 1) * depth, part, parts});
    }
    std::ranges::stable_partition(hand,
                                  [](const TilePart& at) { return at.parts == 1 || at.part + 1 < at.parts; });
  }
  return hands;
}

}  // namespace shingle
