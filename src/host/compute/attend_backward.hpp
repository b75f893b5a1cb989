// One execution of an AttendBackward step: all query heads that share one head of K and V, a block of queries
// by a block of keys at a time.
//
// Scores are computed anew from Q, K and the log-sum-exp (FlashAttention, Dao et al. 2022), so no matrix of
// all queries and keys exists. Sums run over query heads, query blocks and key blocks in this order.
#pragma once

#include <cstdint>

#include "host/executor/memory.hpp"
#include "host/executor/worker.hpp"
#include "products.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class AttendBackwardTask {
 public:
  AttendBackwardTask(const Plan& plan, const AttendBackward& step, const Memory& memory, Products& products,
                     std::uint32_t epoch);

  /// Computes the tile at `position`, which is not phantom.
  void run(Worker& worker, std::int64_t position) const;

 private:
  /// A block of a matrix as fp32.
  struct Panel {
    const float* data;
    std::int64_t ld;
  };
  /// Consecutive queries of one sequence and one head: row of the step, and column of Q.
  struct Queries {
    std::int64_t row;
    std::int64_t rows;
    std::int64_t col;
  };
  /// fp32 sums of the item: a row of head_dim for each key of the step.
  struct Sums {
    float* keys;
    float* values;
  };

  void add_block(Worker& worker, const Queries& queries, std::int64_t kv_col, const Sums& sums) const;
  /// P in place of the scores, and dS in place of dP = dO · Vᵀ.
  void weigh(const Queries& queries, std::int64_t key, std::int64_t count, const float* deltas, float* scores,
             float* grads) const;
  Panel panel(const View& view, std::int64_t row, std::int64_t rows, std::int64_t col,
              Scratch& scratch) const;
  void multiply(Worker& worker, const ProductShape& shape, const float* a, const float* b, float* c) const;

  const Plan& plan_;
  const AttendBackward& step_;
  Products& products_;
  View q_, grad_, attended_, lse_, keys_, values_, q_grad_, keys_grad_, values_grad_;
  std::int64_t dim_, sharing_;
  float factor_;
};

}  // namespace shingle::host
