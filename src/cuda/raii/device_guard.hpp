// Sets the current device of this thread, and restores it at the end of the scope.
#pragma once

#include <utility>

#include "check.hpp"

namespace shingle::cuda {

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    // A thread has device 0 before it has a context, which calls of the driver need: its first guard sets it.
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
