// ring: what serves which operator.
#include "ring_attention.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle {

Result<Plan> plan_ring(const Problem& problem, const Machine& machine, const Params& params) {
  problem.validate();
  if (problem.attends()) return planner::ring_attention(problem, machine, params);
  return Reason{"ring serves attention+reducescatter"};
}

}  // namespace shingle
