// One execution of an Elementwise step: reorder, sum, epilogue, residual and norm, row by row.
//
// An item first looks up where each of its rows lies in every placement; then rows are processed one by one
// in fp32. A pure reorder copies bytes.
#pragma once

#include <cstdint>

#include "memory.hpp"
#include "shingle/plan/plan.hpp"
#include "worker.hpp"

namespace shingle::host {

class ElementwiseTask {
 public:
  ElementwiseTask(const Plan& plan, const Elementwise& step, const Memory& memory, std::uint32_t epoch);

  /// One item of the step: the tile at a position that is not phantom, or a row of tiles. Returns the bytes
  /// that were stored.
  std::int64_t run(Worker& worker, std::int64_t item) const;

 private:
  struct Rows;
  std::int64_t run_tile(Worker& worker, std::int64_t position) const;
  std::int64_t run_row_of_tiles(Worker& worker, std::int64_t tile_m) const;
  void locate(const Placement& at, const View& buffer, std::int64_t position, std::byte** rows,
              std::int64_t count) const;
  void gather_row(const Worker& worker, std::size_t i, std::size_t count, float* x) const;
  void finish_row(float* x, const Rows& rows, std::int64_t row) const;

  const Plan& plan_;
  const Elementwise& step_;
  std::vector<View> from_;
  View to_, bias_, weight_, residual_, sum_;
  std::int64_t out_cols_;
};

}  // namespace shingle::host
