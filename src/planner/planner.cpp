#include "shingle/planner/planner.hpp"

namespace shingle {

Result<Plan> plan_with(const Problem& problem, const Machine& machine, const Params& params) {
  struct Planners {
    const Problem& problem;
    const Machine& machine;
    Result<Plan> operator()(const SequentialParams& at) const {
      return plan_sequential(problem, machine, at);
    }
    Result<Plan> operator()(const ChunkedParams& at) const { return plan_chunked(problem, machine, at); }
    Result<Plan> operator()(const SignalParams& at) const { return plan_signal(problem, machine, at); }
    Result<Plan> operator()(const RingParams& at) const { return plan_ring(problem, machine, at); }
    Result<Plan> operator()(const FusedParams& at) const { return plan_fused(problem, machine, at); }
    Result<Plan> operator()(const CopyEngineParams& at) const {
      return plan_copy_engine(problem, machine, at);
    }
  };
  return std::visit(Planners{problem, machine}, params);
}

}  // namespace shingle
