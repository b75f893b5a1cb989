// How epochs of a plan get to the devices.
#pragma once

#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

/// Why the lanes of a plan are not to be branches of a graph; empty where nothing speaks against it.
std::string unfit_for_graph(const Plan& plan);

/// Whether waits of copy lanes behind their copies are on a stream of their own, beside them: a wait holds
/// back what follows it, but need not come behind what is before. So an engine goes from copy to copy without
/// a kernel between. Of plans with one copy lane a rank, which leave a hardware queue for it.
bool waits_aside(const Plan& plan);

/// Whether copy engines get their commands in the course of a run: then the host's calls are part of its
/// time.
bool submits(const Plan& plan);

}  // namespace shingle::cuda
