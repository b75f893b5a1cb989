#include "cuda/executable.hpp"

#include "shingle/base/error.hpp"

namespace shingle::cuda {

std::unique_ptr<Executable> compile(CudaWorld&, const Plan&) {
  throw Unsupported("the CUDA backend runs no plans yet");
}

}  // namespace shingle::cuda
