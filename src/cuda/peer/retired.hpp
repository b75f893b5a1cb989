// Memory that other processes may still have mapped, and so may not be freed yet.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/processes.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

class Retired {
 public:
  /// What was not settled is left to the end of the process.
  ~Retired();

  /// A number for memory that all processes are about to share: they take numbers in one order.
  std::uint64_t number() { return next_++; }
  /// This process has closed what it had mapped of the others' memory with that number, and has no more use
  /// for its own.
  void add(std::uint64_t number, std::vector<DeviceMemory> own);
  bool empty() const { return kept_.empty(); }
  /// Frees what all processes have closed. Collective.
  void settle(Processes& processes, double timeout_us);

 private:
  std::uint64_t next_ = 0;
  std::vector<std::pair<std::uint64_t, std::vector<DeviceMemory>>> kept_;
};

}  // namespace shingle::cuda
