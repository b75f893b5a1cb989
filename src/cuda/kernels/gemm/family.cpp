#include "cuda/kernels/gemm.hpp"

namespace shingle::cuda {

const char* name(GemmFamily family) {
  return family == GemmFamily::sm80 ? "sm80" : "sm90";
}

GemmFamily gemm_family(int major, int minor) {
  const bool hopper = major == 9 && minor == 0;
  return hopper && !gemm_instances(GemmFamily::sm90).empty() ? GemmFamily::sm90 : GemmFamily::sm80;
}

}  // namespace shingle::cuda
