// What calls write that may still run. A GEMM that loads its weights before the kernels ahead have ended must
// not read what they write.
#pragma once

#include <cstddef>

#include "cuda/memory/outputs.hpp"

namespace shingle::cuda {

/// What the calls of a queue write, for as long as they may run. Belongs to the device that is current when
/// it is made. Any thread may use it.
class Written {
 public:
  /// `in_flight`: maximum number of calls of the queue in flight. The queue must keep to it. Then note() only
  /// forgets a call that has ended, whatever other queues do.
  explicit Written(std::size_t in_flight);
  ~Written();
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  /// Of the next call, which has not been enqueued yet.
  void note(const Outputs& outputs);
  /// Of a captured call. Kernels of a graph start after all work ahead of the graph, and work behind the
  /// graph starts after all of it. So only kernels of one graph can overlap. All kernels between two that
  /// overlap are resident.
  void note_captured(const Outputs& outputs);

 private:
  friend bool is_written(int device, const void* first, std::size_t bytes);

  /// Maximum number of resident grids for compute capability 9.0. A call has at least one.
  static constexpr std::size_t most_resident_kernels = 128;

  const int device_;
  LastOutputs in_flight_, captured_{most_resident_kernels};
};

/// True if a call that may still run on the device writes some of these bytes.
bool is_written(int device, const void* first, std::size_t bytes);

}  // namespace shingle::cuda
