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
    Result<Plan> operator()(const LowLatencyParams& at) const {
      return plan_low_latency(problem, machine, at);
    }
  };
  return std::visit(Planners{problem, machine}, params);
}

Result<Plan> plan_with(const Workload& workload, const Machine& machine, const Params& params) {
  workload.validate();
  if (const auto* at = std::get_if<SequentialParams>(&params)) return plan_sequential(workload, machine, *at);
  if (const auto* at = std::get_if<ChunkedParams>(&params)) return plan_chunked(workload, machine, *at);
  if (std::holds_alternative<CopyEngineParams>(params) || std::holds_alternative<LowLatencyParams>(params))
    return Reason{"an overlap's collectives are NCCL's or MPI's: use chunked"};
  return Reason{"an overlap keeps its computations and collectives whole: use chunked or sequential"};
}

}  // namespace shingle
