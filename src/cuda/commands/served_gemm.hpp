// A Gemm step in the terms of the instrumented kernel: its tiles, its rows of A, and the instance that runs
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/gemm.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

/// The rows of A that a tile reads.
struct RowsOfA {
  std::int64_t base = 0;
  std::int64_t rows = 0;  ///< of op(A), counted from base
  std::int32_t parts = 1;
  std::int32_t part_rows = 0;
  std::int64_t stride = 0;
  std::vector<std::int32_t> first{};   ///< by row of tiles, if no formula gives them
  std::vector<std::int32_t> weight{};  ///< by row of tiles: number of the weight; empty: there is one
};

/// The instance that runs a step, and the positions of the grid that it runs, in clusters.
struct Choice {
  const GemmInstance* instance = nullptr;
  std::vector<std::int64_t> positions{};
};

/// A step without addresses.
struct ServedGemm {
  TileGrid grid;
  std::vector<Tile> tiles;
  RowsOfA rows;
  Choice choice;
  CountedGemmArgs args;
};

/// Throws Unsupported if no instance can run the step.
ServedGemm serve(const Plan& plan, const Gemm& step);

}  // namespace shingle::cuda
