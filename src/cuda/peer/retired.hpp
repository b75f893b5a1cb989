// Memory that other processes may still have mapped, and that may therefore not be freed yet.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/processes.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class Retired {
 public:
  /// Memory that was not settled stays until the end of the process.
  ~Retired();

  /// A number for memory that all processes are about to share. All processes must take numbers in the same
  /// order.
  std::uint64_t number() { return next_++; }
  /// Hands over this process's own memory of that number. The process has closed its mappings of the others'
  /// memory of the same number.
  void add(std::uint64_t number, std::vector<DeviceMemory> own);
  bool empty() const { return kept_.empty(); }
  /// Frees memory whose number every process has handed over. Collective.
  void settle(Processes& processes, double timeout_us);

 private:
  std::uint64_t next_ = 0;
  std::vector<std::pair<std::uint64_t, std::vector<DeviceMemory>>> kept_;
};

}  // namespace shingle::cuda
