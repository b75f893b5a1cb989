// Time of tiles that workers share (grid/split.hpp).
#pragma once

#include "grid/split.hpp"
#include "shingle/machine/machine.hpp"

namespace shingle {

/// The tiles that workers share, if the machine's kernels do so.
SharedTiles shared_tiles(const Machine& machine, KSplit how, std::int64_t tiles, double k,
                         std::int64_t workers);
/// Time of a wave of tiles of which workers share some: of the depth that each computes, and of the sums that
/// it leaves and adds. A whole wave if `shared` has none.
double wave_us(const Machine& machine, std::int64_t tile_rows, std::int64_t tile_cols, double k,
               const SharedTiles& shared);

}  // namespace shingle
