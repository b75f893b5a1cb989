// A rank of this process: its device, and the words through which host and kernels stop each other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "cuda/kernels/hooks.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::cuda {

/// Words that host and kernels share, in pinned memory.
struct Signals {
  std::uint32_t abort = 0;
  Stall stall;
};

/// The timeout of a single wait in kernels: a word in pinned memory. Each context or executable has its own.
class WaitTimeout {
 public:
  explicit WaitTimeout(double timeout_us);

  /// From now on, also for kernels that were launched before.
  void set_us(double timeout_us);
  const std::uint64_t* ns() const { return word_.get<const std::uint64_t>(); }

 private:
  PinnedMemory word_;
};

class LocalRank {
 public:
  /// Throws CudaError.
  LocalRank(int rank, int device);

  int rank() const { return rank_; }
  int device() const { return device_; }

  /// The words that kernels of an executable poll. `epoch` is the executable's epoch word in this rank's
  /// device memory.
  Watch watch(const std::uint32_t* epoch, const WaitTimeout& timeout) const;

  /// Ends all waits of kernels, including those of later launches.
  void abort();
  /// True once the waits of kernels were ended, by abort() or because a wait passed its deadline.
  bool aborted() const;
  /// The wait that passed its deadline; without a counter if none did. Complete once aborted() is true,
  /// unless the host ended the waits.
  Stall stall() const { return signals_->stall; }
  /// Keeps the words until the end of the process: freeing them could wait for the device for ever.
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
