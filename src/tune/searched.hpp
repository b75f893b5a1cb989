// Default params of `signal`: groups of waves, and workers for their collectives, by Alg. 1.
#pragma once

#include <optional>

#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"

namespace shingle {

/// The params of `signal` that are predicted to be fastest (FlashOverlap Alg. 1). It chooses groups of waves,
/// and the workers of collectives unless `given` sets them. The rest is as in `given`. A pure function in
/// closed form: it makes and simulates no plan, and all ranks get the same result. Empty if `given` has
/// groups or asks for equal ones, if the machine lacks figures, or if `signal` does not serve the problem.
std::optional<SignalParams> searched_groups(const Problem& problem, const Machine& machine,
                                            const SignalParams& given);

/// True if groups of waves are searched for the mechanism, by the figures of a machine's profile.
constexpr bool searches_groups(Mechanism mechanism) {
  return mechanism == Mechanism::signal;
}

}  // namespace shingle
