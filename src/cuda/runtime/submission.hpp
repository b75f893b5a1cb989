// How epochs of a plan get to the devices.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

/// Why the lanes of a plan are not to be branches of a graph; empty where nothing speaks against it.
std::string unfit_for_graph(const Plan& plan);

/// Whether copy engines get their commands in the course of a run: then the host's calls are part of its
/// time.
bool submits(const Plan& plan);

}  // namespace shingle::cuda
