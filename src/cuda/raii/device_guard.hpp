// Sets the current device of this thread, and restores it at the end of the scope.
#pragma once

#include <utility>

#include "check.hpp"

namespace shingle::cuda {

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    // Calls of the driver need a current context. cudaGetDevice gives 0 before there is one, so a thread's
    // first guard always sets the device.
    static thread_local bool has_context = false;
    changes_ = device != before_;
    if (changes_ || !std::exchange(has_context, true)) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() {
    if (changes_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changes_ = false;
};

}  // namespace shingle::cuda
