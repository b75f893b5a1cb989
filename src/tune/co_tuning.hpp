// Configurations for the collectives of a workload, searched by simulation or by running it (Lagom;
// docs/mechanisms/co-tuning.md).
#pragma once

#include <functional>
#include <vector>

#include "cotune/search.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/planner/params.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

/// Resources of a workload's collectives on a machine: up to 64 channels (NCCL's max.) and chunks of 32 KiB
/// to 4 MiB. At least one worker is left to computation.
cotune::Space resource_space(const Machine& machine);
/// All six parameters of NCCL: also algorithm and protocol, transport, and up to 512 threads.
cotune::Space config_space(const Machine& machine);
/// As above, and what a plan can choose besides: copy engines, if ranks reach each other's memory, with
/// slices up to 64 MiB; workers that the computations beside a collective spare, and how many of them end
/// before it begins.
cotune::Space overlap_space(const Machine& machine);

/// Params for simulating a workload's plan. Products are calls of the library where its kernels keep their
/// workers to the end. Elsewhere they have the machine's tiles, whose workers are released one by one.
ChunkedParams overlap_params(const Machine& machine, std::vector<CollectiveConfig> configs);

/// Simulates one iteration of a workload: collectives run beside computations, or one after the other if
/// `beside` is false. The makespan is infinite if there is no such plan. Throws as simulate().
cotune::Measurement simulate_overlap(const Workload& workload, const Machine& machine,
                                     const std::vector<CollectiveConfig>& configs, bool beside = true,
                                     const SimOptions& options = {});

/// Measurement from the spans of an epoch of a workload's plan. It holds the computing time of the rank with
/// the max. computing time. For each collective, it holds the time from the last rank's arrival to the last
/// rank's end.
cotune::Measurement measurement_of(const Plan& plan, const std::vector<Span>& spans, double makespan_us);

/// Measures a workload with a configuration for each of its collectives.
using OverlapMeter = std::function<cotune::Measurement(const std::vector<CollectiveConfig>&)>;

struct CoTuned {
  std::vector<CollectiveConfig> configs;  ///< one per collective
  cotune::Measurement measured;
  int evaluations = 0;
};

/// Searches by `method`, then measures the result once more. `alike` gives each collective a zero-based
/// number; collectives with the same number share a configuration. Empty: each has its own. Throws as Search
/// and `measure`. Throws InvalidArgument as Workload::validate(), or if `alike` does not number each
/// collective.
CoTuned co_tune(const Workload& workload, const OverlapMeter& measure, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options = {},
                const std::vector<int>& alike = {});
/// As above, by simulation. Also throws as simulate(), and Unsupported if the workload has no plan at all.
CoTuned co_tune(const Workload& workload, const Machine& machine, cotune::Method method,
                const cotune::Space& space, const cotune::Options& options = {},
                const std::vector<int>& alike = {});

}  // namespace shingle
