// One execution of an Attend step: attention of a block of queries of one head, over one block of keys at a
// time.
//
// The scores and weights of a block stay in the cache. Each row keeps its maximum score, the sum of its
// weights and its weighted sum of V relative to that maximum. A larger score rescales both sums (online
// softmax: Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).
#pragma once

#include <cstdint>
#include <vector>

#include "host/executor/memory.hpp"
#include "host/executor/worker.hpp"
#include "products.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class AttendTask {
 public:
  AttendTask(const Plan& plan, const Attend& step, const Memory& memory, Products& products,
             std::uint32_t epoch);

  /// Computes the tile at `position`, which is not phantom.
  void run(Worker& worker, std::int64_t position) const;
  /// Bytes of the tile at `position` that are stored on ranks other than the computing one.
  std::int64_t crossing(std::int64_t position) const;

 private:
  /// Queries [row, row + rows) of the tile, all of one sequence. The results are fp32 rows of head_dim at
  /// `out`. Also stores their log-sum-exp if the step does.
  void attend(Worker& worker, const TileRect& tile, std::int64_t row, std::int64_t rows, float* out) const;
  /// A block of a view as fp32: head_dim columns from `col` on, either in place or widened into scratch.
  struct Panel {
    const float* data;
    std::int64_t ld;
  };
  Panel panel(const View& view, std::int64_t row, std::int64_t rows, std::int64_t col,
              Scratch& scratch) const;

  const Plan& plan_;
  const Attend& step_;
  Products& products_;
  View q_, keys_, values_, lse_;  ///< `lse_`: without data if the step does not store it
  std::vector<View> outs_;        ///< by rank; empty for a rank that the output cannot reach
  std::int64_t dim_, sharing_;
};

}  // namespace shingle::host
