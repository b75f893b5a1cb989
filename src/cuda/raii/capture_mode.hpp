// Lets this thread allocate memory while it, or any thread in global mode, captures a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "check.hpp"

namespace shingle::cuda {

/// For calls that touch neither a captured stream nor the legacy stream, until the end of the scope.
class RelaxedCapture {
 public:
  RelaxedCapture() {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the mode before
};

}  // namespace shingle::cuda
