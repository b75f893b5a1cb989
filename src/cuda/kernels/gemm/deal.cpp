#include <fmt/format.h>

#include <algorithm>

#include "cuda/kernels/gemm.hpp"
#include "grid/split.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {

SharedTiles shared_tiles(const GemmInstance& instance, KSplit how, const GemmArgs& args, std::size_t tiles,
                         std::int32_t ctas) {
  const std::int32_t cluster = instance.tile.cluster;
  return shared_tiles(std::min(how, instance.splits), static_cast<std::int64_t>(tiles) / cluster, args.k,
                      larger(ctas / cluster, 1));
}

std::vector<GemmWork> deal(const GemmInstance& instance, GemmArgs& args, const std::vector<TileAt>& tiles,
                           std::int32_t ctas, const SharedTiles& shared) {
  const std::int32_t cluster = instance.tile.cluster;
  const std::int64_t units = std::ssize(tiles) / cluster, steps = ceil_div(args.k, KSteps::depth);
  const auto hands = shingle::deal(units, steps, ctas / cluster, shared);
  const bool far = std::ranges::any_of(
      tiles, [](const TileAt& tile) { return tile.m >= PackedTile::most_m || tile.n >= PackedTile::most_n; });
  if (far || std::ssize(tiles) > WorkCode::most_positions || steps > KSteps::most ||
      shared.parts > WorkCode::most_parts)
    throw InvalidArgument(fmt::format("a GEMM of {} tiles with K = {} in {} parts is too large for a kernel",
                                      tiles.size(), args.k, shared.parts));
  const std::size_t rounds = std::ranges::max(hands, {}, &std::vector<TilePart>::size).size();
  const TilePart* const last = hands.back().empty() ? nullptr : &hands.back().back();
  args.ctas = static_cast<std::int32_t>(std::ssize(hands) * cluster);
  args.positions = static_cast<std::int32_t>(tiles.size());
  args.split = {};
  if (last != nullptr && last->parts > 1) {
    args.split.begin = static_cast<std::int32_t>((units - shared.count) * cluster);
    args.split.others = static_cast<std::int32_t>(last->parts - 1);
    if (instance.splits == KSplit::all)
      args.split.depth = static_cast<std::int32_t>((last->last - last->first) * KSteps::depth);
    // With a single row of tiles, only existing rows have sums.
    const bool one_row = args.a_parts == 1 && args.rows <= args.part_rows;
    const std::int64_t rows = one_row ? ceil_div(args.rows, 16) * 16 : args.tile.rows;
    args.split.rows = static_cast<std::int32_t>(smaller(rows, args.tile.rows));
  }
  std::vector<GemmWork> works;
  for (std::size_t round = 0; round < rounds; ++round)
    for (const std::vector<TilePart>& hand : hands)
      for (std::int32_t i = 0; i < cluster; ++i) {
        GemmWork& work = works.emplace_back();
        if (round >= hand.size()) continue;
        const TilePart& part = hand[round];
        const auto position = static_cast<std::int32_t>(part.tile * cluster + i);
        work.tile = PackedTile::of(tiles[static_cast<std::size_t>(position)]);
        const auto next = round + 1 == hand.size()     ? WorkCode::Next::nothing
                          : hand[round + 1].parts == 1 ? WorkCode::Next::tile
                                                       : WorkCode::Next::part;
        work.code = WorkCode::of(position, static_cast<std::int32_t>(part.part),
                                 static_cast<std::int32_t>(part.parts), next);
        work.steps = KSteps::of(part.first, part.last - part.first);
      }
  args.work_count = static_cast<std::int32_t>(works.size());
  return works;
}

std::size_t SplitK::arrived_words(const GemmArgs& args) const {
  return others == 0 ? 0 : static_cast<std::size_t>(args.positions - begin) * 8;
}

std::size_t SplitK::sum_bytes(const GemmArgs& args) const {
  return static_cast<std::size_t>(args.positions - begin) * static_cast<std::size_t>(others) *
         static_cast<std::size_t>(rows) * static_cast<std::size_t>(args.tile.cols) * sizeof(float);
}

}  // namespace shingle::cuda
