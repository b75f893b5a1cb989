// Plans at work on a CUDA world.
#pragma once

#include <memory>

#include "cuda/world.hpp"

namespace shingle::cuda {

/// The plan is for this world's ranks, and the same on all processes. Collective. Throws Unsupported where
/// the plan needs what the world cannot do.
std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan);

}  // namespace shingle::cuda
