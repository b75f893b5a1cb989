// The GPUs of this machine.
#pragma once

#include <string>

#include "cuda/kernels/gemm.hpp"

namespace shingle::cuda {

/// Number of GPUs. If it is 0, `why` gets the reason.
int count_gpus(std::string& why);
/// Number of GPUs. Throws Unsupported with the reason if there are none.
int require_gpu();
/// Family of GEMM kernels for the device.
GemmFamily family_of(int device);

}  // namespace shingle::cuda
