// Owner of an event of the device that is current when it is made.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "check.hpp"

namespace shingle::cuda {

class Event {
 public:
  enum class Timing { off, on };

  /// Throws CudaError.
  explicit Event(Timing timing = Timing::off) {
    check(cudaEventCreateWithFlags(&event_, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags");
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// What follows in the stream waits for what was recorded.
  void delay(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  /// Throws CudaError where something before it failed.
  bool done() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    check(result, "cudaEventQuery");
    return true;
  }
  /// From this event to another of the same device, both with timing and done.
  double us_until(const Event& later) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, event_, later.event_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace shingle::cuda
