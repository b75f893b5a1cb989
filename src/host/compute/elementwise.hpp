// One execution of an Elementwise step: reorder, sum, epilogue, residual and norm, row by row.
//
// An item first looks up where each of its rows lies in every placement. It then processes its rows one by
// one in fp32. A pure reorder copies bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "host/executor/memory.hpp"
#include "host/executor/worker.hpp"
#include "placed.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

class ElementwiseTask {
 public:
  ElementwiseTask(const Plan& plan, const Elementwise& step, const Memory& memory, std::uint32_t epoch);

  /// Runs one item of the step: the tile at a position that is not phantom, or a row of tiles.
  void run(Worker& worker, std::int64_t item) const;
  /// Bytes that `rank` reads and stores on other ranks when it runs the item.
  std::int64_t crossing(int rank, std::int64_t item) const;

 private:
  struct Rows;
  struct Source : Placed {
    View index{};  ///< of rows that are picked by an index
  };
  void run_tile(Worker& worker, std::int64_t position) const;
  void run_row_of_tiles(Worker& worker, std::int64_t tile_m) const;
  PlacedTile tile_at(std::int64_t position) const;
  void pick(const Source& source, const TileRect& tile, std::byte** rows) const;
  bool exists(std::int64_t row) const;
  bool moves(std::int64_t row) const;
  void gather_row(const Worker& worker, std::size_t i, std::size_t count, float* x) const;
  void finish_row(float* x, const Rows& rows, std::int64_t row) const;

  const Plan& plan_;
  const Elementwise& step_;
  std::vector<Source> from_;
  Placed to_, residual_, sum_;
  View factors_, bias_, weight_;
  std::int64_t out_cols_;
  std::int64_t tokens_;  // rows beyond do not exist for the rank
};

}  // namespace shingle::host
