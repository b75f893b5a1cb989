// What copy engines can carry out, and the params with which: those that are asked for, and the rest by size.
#pragma once

#include "shingle/planner/planner.hpp"

namespace shingle::planner {

/// Every param that concerns copy engines, or why there is no plan. `symmetric`: any two ranks send each
/// other as many rows.
Result<Params> engine_params(const Problem& problem, const Machine& machine, const Params& params,
                             bool symmetric);

/// How a variant exchanges rows before ranks sum them, and how it gathers the sums.
inline Variant exchange_of(Variant variant) {
  return variant == Variant::bcst ? Variant::pcpy : variant;
}
inline Variant gather_of(Variant variant) {
  return variant == Variant::swap ? Variant::pcpy : variant;
}

}  // namespace shingle::planner
