// Plans of overlap lists, for the planners `sequential` and `chunked`.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// Reason why the configs in the params do not fit the problem's collectives, or nullopt.
std::optional<Reason> wrong_configs(const Problem& problem, const Machine& machine, const Params& params);

/// Copies the params that an overlap's plan uses: the configs of the collectives, and the tile. Without a
/// tile, products are calls of cuBLASLt or oneDNN.
void take_overlap_params(const Params& params, const Machine& machine, Params& chosen);

/// Plans computations in order on one lane and collectives on the other. With `beside`, each item awaits only
/// the items that its list names. Otherwise it awaits all items before it in sequential order.
void plan_overlap(Builder& build, bool beside);

}  // namespace shingle::planner
