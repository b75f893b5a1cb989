// Configurations for the collectives of an overlap, searched by simulation or by running it (Lagom;
// docs/mechanisms/co-tuning.md).
#pragma once

#include <functional>
#include <vector>

#include "cotune/search.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/problem.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

/// What an overlap's collectives may be given on a machine: up to 64 channels (NCCL's most), but no worker
/// less than computation needs, and chunks of 32 KiB to 4 MiB.
cotune::Space config_space(const Machine& machine);

/// For an overlap's plan that is to be simulated: products in tiles of the machine, which give way to
/// collectives one by one, as a library's do.
Params overlap_params(const Machine& machine, std::vector<CollectiveConfig> configs);

/// An iteration of an overlap in the simulator; collectives beside computations, or (`beside` false) one
/// thing after the other. A makespan without end where there is no such plan. Throws as simulate().
cotune::Measurement simulate_overlap(const Problem& overlap, const Machine& machine,
                                     const std::vector<CollectiveConfig>& configs, bool beside = true,
                                     const SimOptions& options = {});

/// What the spans of an epoch say: the time in products of the rank that has most, and of each collective
/// from when the last rank has come until the last one goes.
cotune::Measurement measurement_of(const Plan& plan, const std::vector<Span>& spans, double makespan_us);

/// Measures an overlap with a configuration for each of its collectives.
using OverlapMeter = std::function<cotune::Measurement(const std::vector<CollectiveConfig>&)>;

struct CoTuned {
  std::vector<CollectiveConfig> configs;  ///< one a collective
  cotune::Measurement measured;
  int evaluations = 0;
};

/// Searches by a method, and measures what it found once more. `alike` numbers the collectives so that those
/// of one number, from 0, get the same configuration; empty: each its own. Throws as Search and `measure`,
/// and InvalidArgument where the problem is no overlap, or `alike` does not number each of its collectives.
CoTuned co_tune(const Problem& overlap, const OverlapMeter& measure, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options = {},
                const std::vector<int>& alike = {});
/// By simulation. Throws as simulate(), too; Unsupported where the overlap has no plan at all.
CoTuned co_tune(const Problem& overlap, const Machine& machine, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options = {},
                const std::vector<int>& alike = {});

}  // namespace shingle
