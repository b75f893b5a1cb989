// The GPUs of this machine.
#pragma once

#include <string>

#include "cuda/kernels/gemm.hpp"

namespace shingle::cuda {

/// How many there are; where there are none, `why` says why.
int count_gpus(std::string& why);
/// How many there are; throws Unsupported with the reason where there are none.
int require_gpu();
/// Of the GEMM kernels that a device runs.
GemmFamily family_of(int device);

}  // namespace shingle::cuda
