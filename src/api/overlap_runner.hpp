// Overlaps measured by running them: what a co-tuner is told of a machine that is there.
#pragma once

#include <memory>
#include <vector>

#include "cotune/search.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle {

/// Runs an overlap again and again on a world, which must outlive it, on random matrices. On GPUs a
/// configuration's channels are the thread blocks that NCCL may take (a communicator for each number); its
/// other settings, and on threads all of them, change nothing.
class OverlapRunner {
 public:
  /// Collective over the world's processes, as is measure(). Throws as Operator.
  OverlapRunner(World& world, const Problem& overlap);
  ~OverlapRunner();

  /// Iterations back to back, as many as a run should take by the world's timing, and once more with a
  /// trace. The makespan is an iteration's; without end where there is no plan. The same on every process.
  cotune::Measurement measure(const std::vector<CollectiveConfig>& configs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shingle
