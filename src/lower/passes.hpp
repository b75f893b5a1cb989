// How backends whose steps are kernels carry out passes: what is one kernel, and what is several. The
// simulator counts them alike.
#pragma once

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Whether a step and the next one of its lane are one pass: both only move rows, from memory that neither
/// writes, of the same tiles behind the same gates, to the same buffer.
bool one_pass(const Plan& plan, const Elementwise& step, const Elementwise& next);

}  // namespace shingle
