// Bytes that steps move through their rank's memory (Lagom's D).
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/machine/contention.hpp"
#include "shingle/machine/machine.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::sim {

/// Bytes of an element of the slice.
double element_bytes(const Plan& plan, const Slice& slice);
/// Rows of a product by weight, without weights that have none. Of counted rows: those that are expected to
/// have a token.
std::vector<std::int64_t> rows_by_weight(const Plan& plan, const Gemm& gemm);
/// Of a pass that makes `elements` elements.
double pass_bytes(const Plan& plan, const Elementwise& step, double elements);
/// Of a tiled step. A product by cuBLASLt or oneDNN is taken to have the machine's tiles.
MovedBytes moved_by(const Plan& plan, const Step& step, const Machine& machine);

}  // namespace shingle::sim
