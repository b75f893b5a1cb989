// Measures workloads by running them, for a co-tuner on a real machine.
#pragma once

#include <memory>
#include <vector>

#include "cotune/search.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/plan/workload.hpp"

namespace shingle {

/// Runs a workload repeatedly on a world, with random matrices. The world must outlive it. On GPUs,
/// `channels` of a configuration are the thread blocks that NCCL may use, with a communicator for each
/// number. Its other settings have no effect. On host threads no setting has one.
class OverlapRunner {
 public:
  /// Collective over the world's processes, as measure(). Throws as Operator.
  OverlapRunner(World& world, const Workload& workload);
  ~OverlapRunner();

  /// Runs iterations back to back, as many as the world's timing allows for a run, and once more with a
  /// trace. The makespan is that of one iteration; it is infinite if there is no plan. Every process gets the
  /// same figures.
  cotune::Measurement measure(const std::vector<CollectiveConfig>& configs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shingle
