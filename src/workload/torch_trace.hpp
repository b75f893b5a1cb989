// What a trace of torch.profiler says of a GPU's work: Kineto's events, in Chrome's trace format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/base/dtype.hpp"
#include "shingle/plan/overlap.hpp"

namespace shingle::torch {

/// A product of matrices, as the operator that launched it was called.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::optional<DType> dtype;  ///< of its elements, where we have it
};

/// A call of NCCL.
struct Call {
  std::optional<CollectiveKind> kind;  ///< where an overlap has it
  std::int64_t bytes = 0;              ///< as Overlap::Collective counts them
  int ranks = 0;
};

/// What a stream does at a time: a kernel, a copy, a memset.
struct Work {
  std::string name;      ///< of the operator, else of the kernel
  std::int64_t op = -1;  ///< that launched it
  double begin_us = 0, end_us = 0;
  std::int64_t stream = 0;
  std::int64_t correlation = 0;  ///< of the call that enqueued it: these ascend
  std::optional<Product> product;
  std::optional<Call> call;
};

/// What is enqueued on `stream` after `correlation` awaits what was enqueued on `on_stream` (-1: on any
/// other) before `recorded`; where the trace does not say when that was, before the wait.
struct Wait {
  std::int64_t stream = 0, correlation = 0;
  std::int64_t on_stream = 0, recorded = 0;
};

struct Iteration {
  std::string name;         ///< "ProfilerStep#3"; empty: the trace has none
  std::vector<Work> work;   ///< what was launched in it, by correlation
  std::vector<Wait> waits;  ///< by correlation
  bool has_waits = false;   ///< the trace says what streams await
};

/// One iteration: "ProfilerStep#step", or the last one where `step` is negative. Throws InvalidArgument.
Iteration read_trace(std::string_view text, int step);

}  // namespace shingle::torch
