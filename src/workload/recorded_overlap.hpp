// The overlap of a real job, from a trace of torch.profiler (docs/mechanisms/co-tuning.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shingle/plan/workload.hpp"

namespace shingle {

struct RecordingOptions {
  int ranks = 0;  ///< size of the group with the collectives to use; 0: the group that moves the most bytes
  int step = -1;  ///< n of "ProfilerStep#n"; negative: the last step
};

struct RecordedOverlap {
  /// The world is the collectives' group. The dtype is that of the products with most multiply-adds.
  Workload workload;
  std::string
      step;  ///< the iteration, "ProfilerStep#3"; empty: the trace has no steps and counts as one iteration
  double us = 0;     ///< time from the begin of its first kernel to the end of its last
  int products = 0;  ///< number of computations that are GEMMs in their recorded sizes
  int left_out = 0;  ///< number of NCCL calls left out: other groups, or kinds that overlaps do not have
  /// True if waits are those of the recorded streams. Otherwise the trace lacks them, and an item awaits the
  /// items of the other lane that ended before it began. No item may then end later than in the trace.
  bool exact = false;
};

/// Reads one iteration of a trace in Chrome's format, as torch.profiler exports it for one rank. The trace
/// needs record_shapes=True. With enable_cuda_sync_events=True it also holds the waits between streams.
///
/// GEMM kernels become computations of their sizes. Other kernels between them become a computation of equal
/// duration, at the pace of the recorded GEMMs. Less than 5 us of them is added to the next computation.
///
/// Kernels of all-reduces, reduce-scatters, all-gathers and all-to-alls become the collectives. Items of a
/// lane are in order of their begin, on any stream.
///
/// Throws InvalidArgument if the trace or iteration does not exist, sizes were not recorded, or the iteration
/// has no GEMM or no collective.
RecordedOverlap recorded_overlap(std::string_view trace, const RecordingOptions& options = {});

}  // namespace shingle
