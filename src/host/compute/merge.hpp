// One execution of a Merge step: partial attentions of the same queries, row by row and head by head.
#pragma once

#include <cstdint>
#include <vector>

#include "host/executor/memory.hpp"
#include "host/executor/worker.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class MergeTask {
 public:
  MergeTask(const Plan& plan, const Merge& step, const Memory& memory, std::uint32_t epoch);

  /// Merges the tile at `position`, which is not phantom.
  void run(Worker& worker, std::int64_t position) const;
  /// Bytes of the tile at `position` that are stored on ranks other than the computing one.
  std::int64_t crossing(std::int64_t position) const;

 private:
  struct Part {
    std::int64_t row, rows;
    View value, lse;
  };
  /// One head of one query: `out` is head_dim elements in fp32. Returns the log-sum-exp.
  float merge(Worker& worker, std::int64_t row, std::int64_t col, float* out) const;

  const Plan& plan_;
  const Merge& step_;
  std::vector<Part> parts_;
  std::vector<View> outs_;  ///< by rank; empty for a rank that the output cannot reach
  View lse_;                ///< without data if the step does not store it
  std::int64_t dim_;
};

}  // namespace shingle::host
