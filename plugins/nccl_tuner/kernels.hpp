// Computation and communication of an iteration, timed apart by the kernels that ran on the GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace shingle::nccl_tuner {

/// A kernel that has run on a GPU of this process.
struct Kernel {
  enum Kind : std::int8_t { computation = -2, other_communication = -1 };  ///< else NcclCollective's number

  std::int8_t kind = computation;
  std::uint64_t stream = 0;  ///< of a GPU: the upper half is the GPU's number
  double begin_us = 0, end_us = 0;
};

/// The kind of a kernel, from its name: "ncclDevKernel_AllGather_RING_LL…", also mangled.
std::int8_t kind_of_kernel(std::string_view name);

/// Records kernels while they run.
class KernelRecorder {
 public:
  virtual ~KernelRecorder() = default;
  virtual void start() = 0;
  virtual void stop() = 0;
  /// Kernels that ended since the last take(), in any order.
  virtual std::vector<Kernel> take() = 0;
};

/// Means over the last iterations.
struct Apart {
  double exposed = 0;           ///< share of the time in which collectives run and no computation does
  std::vector<double> call_us;  ///< time of each call of the iteration
};

/// Finds the stream that made the calls of an iteration (Call::signature()), at least three times in a row,
/// and times the last two of them. Nothing if no stream did, or several did.
std::optional<Apart> timed_apart(std::vector<Kernel> kernels, std::span<const std::uint64_t> iteration);

}  // namespace shingle::nccl_tuner
