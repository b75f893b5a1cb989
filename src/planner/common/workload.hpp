// Plans of overlap lists, for the planners `sequential` and `chunked`.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// Reason why the configs do not fit the problem's collectives, or nullopt.
std::optional<Reason> wrong_configs(const Problem& problem, const Machine& machine,
                                    const std::vector<CollectiveConfig>& configs);

/// Copies the params that the plan of a workload uses, with the sides of a tile that the machine adds.
/// Without a tile, products are calls of cuBLASLt or oneDNN.
template <class P>
void take_workload_params(const P& params, const Machine& machine, P& chosen) {
  chosen.configs = params.configs;
  if (params.tile.rows == 0 && params.tile.cols == 0) return;
  const TileSize tile = tile_size(machine, params.tile);
  chosen.tile = {tile.rows, tile.cols, params.tile.order};
}

/// Plans computations in order on one lane and collectives on the other. With `beside`, each item awaits only
/// the items that its list names. Otherwise it awaits all items before it in sequential order.
void plan_workload(Builder& build, const TileParams& tile, const std::vector<CollectiveConfig>& configs,
                   bool beside);

}  // namespace shingle::planner
