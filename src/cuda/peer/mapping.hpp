// Device memory that several processes of a host share, through CUDA's inter-process (IPC) handles.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "backend/processes.hpp"

namespace shingle::cuda {

struct Exported;

/// Mapping memory in another process maps whole blocks of this size. A smaller allocation would share its
/// block with others.
inline constexpr std::size_t shared_unit = std::size_t{2} << 20;
constexpr std::size_t whole_shared_units(std::size_t bytes) {
  return (bytes + shared_unit - 1) / shared_unit * shared_unit;
}

/// Memory of other processes' devices, mapped for one device of this process. The destructor closes the
/// mappings.
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

  /// Collective. Each process passes the same number of addresses of its own device's memory; an address may
  /// be null. Returns the addresses of every process, by rank, as the current device can use them.
  ///
  /// Throws Unsupported if memory has no IPC handle: memory from cudaMalloc has one, pools and virtual memory
  /// have none. Throws CudaError if a handle cannot be opened, Error if another process sends malformed data,
  /// and anything that Processes throws.
  std::vector<std::vector<char*>> exchange(Processes& processes, int own_rank, const std::vector<void*>& own,
                                           double timeout_us);

 private:
  char* open(const Exported& one);

  std::vector<void*> opened_;
  int device_ = 0;
};

/// Why ranks cannot access each other's memory, with one process for each rank; empty if a trial mapping has
/// succeeded. Collective, with the same result on all processes. Throws anything that Processes throws.
std::string no_mapping(Processes& processes, int own_rank, int device, double timeout_us);

}  // namespace shingle::cuda
