// Configurations for the collectives of an overlap, searched by simulation (Lagom; docs/co-tuning.md).
#pragma once

#include <vector>

#include "shingle/cotune/search.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/problem.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

/// What an overlap's collectives may be given on a machine: up to 64 channels (NCCL's most), but no worker
/// less than computation needs, and chunks of 32 KiB to 4 MiB.
cotune::Space config_space(const Machine& machine);

/// An iteration of an overlap in the simulator; collectives beside computations, or (`beside` false) one
/// thing after the other. A makespan without end where there is no such plan. Throws as simulate().
cotune::Measurement simulate_overlap(const Problem& overlap, const Machine& machine,
                                     const std::vector<CollectiveConfig>& configs, bool beside = true,
                                     const SimOptions& options = {});

struct CoTuned {
  std::vector<CollectiveConfig> configs;  ///< one a collective
  cotune::Measurement measured;
  int evaluations = 0;
};

/// Searches by a method. `alike` numbers the collectives so that those of one number, from 0, get the same
/// configuration; empty: each its own. Throws as Search and simulate(); Unsupported where the overlap has no
/// plan at all; InvalidArgument where it is none, or `alike` does not number each of its collectives.
CoTuned co_tune(const Problem& overlap, const Machine& machine, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options = {},
                const std::vector<int>& alike = {});

}  // namespace shingle
