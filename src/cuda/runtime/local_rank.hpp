// A rank of this process: its device, and the words by which host and kernels stop each other.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/kernels/hooks.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

/// In pinned memory, which host and kernels read and write.
struct Signals {
  std::uint32_t abort = 0;
  Stall stall;
  std::uint64_t timeout_ns = 0;
};

class LocalRank {
 public:
  /// Throws CudaError.
  LocalRank(int rank, int device);

  int rank() const { return rank_; }
  int device() const { return device_; }

  /// What kernels of an executable look at; `epoch` is its own word in this rank's device memory.
  Watch watch(const std::uint32_t* epoch) const;

  /// How long one wait of a kernel may take from now on.
  void set_timeout_us(double timeout_us);
  /// Ends all waits of kernels, also of those that are launched later.
  void abort();
  /// Whether waits of kernels have been ended: because one passed its deadline, or by abort().
  bool aborted() const;
  /// What the wait was for that passed its deadline; without a counter where none did. Whole once aborted(),
  /// unless the host ended the waits.
  Stall stall() const { return signals_->stall; }
  /// Leaves the words to the process's end: to free them could wait for the device for ever.
  void abandon() { signals_.release(), claim_.abandon(); }

 private:
  struct Free {
    void operator()(Signals* signals) const noexcept { cudaFreeHost(signals); }
  };
  int rank_;
  int device_;
  std::unique_ptr<Signals, Free> signals_;
  DeviceMemory claim_;
};

}  // namespace shingle::cuda
