// The params that `signal` has by default: groups of waves, and workers for their collectives, by Alg. 1.
#pragma once

#include <optional>

#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// The params of `signal` that are predicted to be fastest (FlashOverlap Alg. 1): groups of waves, and unless
/// `given` sets them the workers of collectives. The rest is as `given`. A pure function in closed form: no
/// plan is made or simulated, and all ranks find the same. Empty where `given` has groups or asks for equal
/// ones, where the machine has no figures to predict by, and where `signal` does not serve the problem.
std::optional<Params> searched_groups(const Problem& problem, const Machine& machine, const Params& given);

}  // namespace shingle
