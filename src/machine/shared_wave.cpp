#include "shared_wave.hpp"

namespace shingle {

SharedTiles shared_tiles(const Machine& machine, KSplit how, std::int64_t tiles, double k,
                         std::int64_t workers) {
  return machine.split_gbps > 0 ? shared_tiles(how, tiles, static_cast<std::int64_t>(k), workers)
                                : SharedTiles{};
}

double wave_us(const Machine& machine, std::int64_t tile_rows, std::int64_t tile_cols, double k,
               const SharedTiles& shared) {
  if (shared.count == 0) return wave_us(machine, tile_rows, tile_cols, k);
  const double bytes = static_cast<double>(tile_rows * tile_cols) * sizeof(float);
  const auto passed = static_cast<double>(shared.rounds + shared.parts - 1);
  return wave_us(machine, tile_rows, tile_cols, shared.depth(k)) +
         passed * bytes / (machine.split_gbps * 1e3);
}

}  // namespace shingle
