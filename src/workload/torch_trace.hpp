// GPU work in a trace of torch.profiler: Kineto's events in Chrome's trace format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/dtype.hpp"
#include "shingle/plan/workload.hpp"

namespace shingle::torch {

/// A GEMM, with the sizes in the call of its operator.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::optional<DType> dtype;  ///< dtype of its elements; empty: Shingle does not have it
};

/// A call of NCCL.
struct Call {
  std::optional<CollectiveKind> kind;  ///< empty: a kind that overlaps do not have
  std::int64_t bytes = 0;              ///< as in Workload::Collective
  int ranks = 0;
};

/// One item of work of a stream: a kernel, a copy or a memset.
struct Work {
  std::string name;      ///< name of the operator, else of the kernel
  std::int64_t op = -1;  ///< the operator that launched it
  double begin_us = 0, end_us = 0;
  std::int64_t stream = 0;
  std::int64_t correlation = 0;  ///< of the call that enqueued it; ascending in order of enqueue
  std::optional<Product> product;
  std::optional<Call> call;
};

/// Work enqueued on `stream` after `correlation` awaits work enqueued on `on_stream` before `recorded`.
/// `on_stream` -1: any other stream. If the trace lacks the time of the record, `recorded` is that of the
/// wait.
struct Wait {
  std::int64_t stream = 0, correlation = 0;
  std::int64_t on_stream = 0, recorded = 0;
};

struct Iteration {
  std::string name;         ///< "ProfilerStep#3"; empty: the trace has none
  std::vector<Work> work;   ///< work launched in the iteration, by correlation
  std::vector<Wait> waits;  ///< by correlation
  bool has_waits = false;   ///< true if the trace holds waits between streams
};

/// Reads iteration "ProfilerStep#step", or the last one if `step` is negative. Throws InvalidArgument.
Iteration read_trace(std::string_view text, int step);

}  // namespace shingle::torch
