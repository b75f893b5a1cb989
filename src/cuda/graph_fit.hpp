// Which plans are launched step by step on streams, although branches of a graph run side by side.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

/// Why the lanes of a plan are not to be branches of a graph; empty where nothing speaks against it.
std::string unfit_for_graph(const Plan& plan);

}  // namespace shingle::cuda
