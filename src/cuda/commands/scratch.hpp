// Scratch memory of a stream, for commands that run one after another.
#pragma once

#include <vector>

#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class Scratch {
 public:
  /// Makes the scratch memory at least that large. Smaller blocks stay: a graph may hold their addresses.
  void reserve(std::size_t bytes) {
    if (bytes > 0 && (blocks_.empty() || blocks_.back().bytes() < bytes)) blocks_.emplace_back(bytes);
  }
  /// Null if nothing was reserved.
  template <class T = void>
  T* get() const {
    return blocks_.empty() ? nullptr : blocks_.back().get<T>();
  }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const DeviceMemory& block : blocks_) sum += static_cast<std::int64_t>(block.bytes());
    return sum;
  }

 private:
  std::vector<DeviceMemory> blocks_;
};

}  // namespace shingle::cuda
