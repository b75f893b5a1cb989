// Device memory that several processes of a host address, through CUDA's inter-process handles.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backend/processes.hpp"

namespace shingle::cuda {

struct Exported;

/// Memory of other processes' devices, as one device of this process reaches it for as long as this lives.
class Mappings {
 public:
  Mappings() = default;
  ~Mappings();
  Mappings(Mappings&& other) noexcept : opened_(std::exchange(other.opened_, {})), device_(other.device_) {}
  Mappings& operator=(Mappings&& other) noexcept {
    std::swap(opened_, other.opened_);
    std::swap(device_, other.device_);
    return *this;
  }

  /// Each process gives as many addresses of its own device's memory, null for none; all get those of all
  /// processes, as the current device reaches them. Collective. Throws Unsupported where an address is of
  /// memory that has no handle: that of cudaMalloc has one, pools and virtual memory do not; CudaError where
  /// a handle cannot be opened; Error where another process gives something else; what Processes throws.
  std::vector<std::vector<char*>> exchange(Processes& processes, int own_rank, const std::vector<void*>& own,
                                           double timeout_us);

 private:
  char* open(const Exported& one);

  std::vector<void*> opened_;
  int device_ = 0;
};

/// Why the processes, a rank each on its device, do not reach each other's memory; empty: they do, and have
/// shown it. Collective, and the same everywhere. Throws what Processes throws.
std::string no_mapping(Processes& processes, int own_rank, int device, double timeout_us);

}  // namespace shingle::cuda
