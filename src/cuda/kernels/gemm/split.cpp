#include <algorithm>

#include "cuda/kernels/gemm.hpp"
#include "shingle/grid/tile_grid.hpp"

namespace shingle::cuda {

SplitK split_k(const GemmArgs& args, std::int64_t parts) {
  constexpr std::int64_t step = 64;  // depth of a main loop step
  const std::int64_t steps = ceil_div(args.k, step);
  SplitK split;
  split.depth = static_cast<std::int32_t>(ceil_div(steps, parts) * step);
  split.parts = static_cast<std::int32_t>(ceil_div(steps * step, split.depth));
  // With a single row of tiles, only existing rows have sums.
  const bool one_row = args.a_parts == 1 && args.rows <= args.part_rows;
  const std::int64_t rows = one_row ? ceil_div(args.rows, 16) * 16 : args.tile.rows;
  split.rows = static_cast<std::int32_t>(smaller(rows, args.tile.rows));
  return split;
}

std::size_t SplitK::sum_bytes(const GemmArgs& args) const {
  return static_cast<std::size_t>(args.positions) * static_cast<std::size_t>(parts - 1) *
         static_cast<std::size_t>(rows) * static_cast<std::size_t>(args.tile.cols) * sizeof(float);
}

}  // namespace shingle::cuda
