// The overlap of a job as it ran: from a trace that torch.profiler recorded (docs/mechanisms/co-tuning.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shingle/base/dtype.hpp"
#include "shingle/plan/overlap.hpp"

namespace shingle {

struct RecordingOptions {
  int ranks = 0;  ///< of the group whose collectives are meant; 0: of the one that moves most bytes
  int step = -1;  ///< n of "ProfilerStep#n"; negative: the last one
};

struct RecordedOverlap {
  Overlap overlap;
  int ranks = 0;             ///< of the collectives' group
  DType dtype = DType::f32;  ///< of the products, by most multiply-adds
  std::string step;          ///< the iteration, "ProfilerStep#3"; empty: there are none, and all is one
  double us = 0;             ///< from its first kernel's begin to its last one's end
  int products = 0;          ///< of the computations, those that were multiplied in these sizes
  int left_out =
      0;  ///< calls of NCCL by other groups, or that are no collective of a kind that overlaps have
  /// Who awaits whom is what streams awaited. Otherwise the trace does not have that, and what was over when
  /// another thing began counts as awaited, on the other lane: nothing may end later than it did.
  bool exact = false;
};

/// One iteration of a trace in Chrome's format, as torch.profiler exports it of one rank with
/// record_shapes=True (and enable_cuda_sync_events=True, so that it says what streams await). Kernels of
/// matrix products are computations of their sizes; what else runs between them counts as one of as long, at
/// the pace of the recorded products (less than 5 us together with what comes next). Kernels of
/// all-reduces, reduce-scatters, all-gathers and all-to-alls are the collectives. On each lane things come in
/// the order in which they began, whatever the stream. Throws InvalidArgument: no such trace or iteration,
/// sizes that were not recorded, an iteration without products or collectives.
RecordedOverlap recorded_overlap(std::string_view trace, const RecordingOptions& options = {});

}  // namespace shingle
