// Params of copy engines: the requested ones, and the rest by size.
#pragma once

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// All params for copy engines, or the reason why there is no plan. `symmetric`: any two ranks send each
/// other the same number of rows.
Result<CopyEngineParams> engine_params(const Problem& problem, const Machine& machine,
                                       const CopyEngineParams& params, bool symmetric);

/// Variant of the exchange before ranks sum rows, and variant of the gather of the sums.
inline CopyVariant exchange_of(CopyVariant variant) {
  return variant == CopyVariant::bcst ? CopyVariant::pcpy : variant;
}
inline CopyVariant gather_of(CopyVariant variant) {
  return variant == CopyVariant::swap ? CopyVariant::pcpy : variant;
}

}  // namespace shingle::planner
