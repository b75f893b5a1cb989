// Lists of computations and collectives: the same for the planners `sequential` and `chunked`.
#pragma once

#include "builder.hpp"

namespace shingle::planner {

/// Why params do not fit the collectives of a problem, or nullopt.
std::optional<Reason> wrong_configs(const Problem& problem, const Machine& machine, const Params& params);

/// What an overlap's plan keeps of params: the collectives' configs, and the tile; without one, products are
/// a library's.
void take_overlap_params(const Params& params, const Machine& machine, Params& chosen);

/// Computations in order on one lane, collectives on the other; each awaits what its list says (`beside`), or
/// all that comes before it in the order in which they could run one by one.
void plan_overlap(Builder& build, bool beside);

}  // namespace shingle::planner
