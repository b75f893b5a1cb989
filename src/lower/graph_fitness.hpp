// Decides if the lanes of a plan can be branches of one CUDA graph.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Returns why the lanes of a plan cannot be branches of a graph; empty if they can.
std::string unfit_for_graph(const Plan& plan);

}  // namespace shingle
