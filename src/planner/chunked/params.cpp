// The params of `chunked`.
#include "planner/common/param_table.hpp"

namespace shingle {

const planner::ParamTable<ChunkedParams>& ChunkedParams::table() {
  using namespace planner;
  using P = ChunkedParams;
  static const ParamTable<P> table = joined(
      {
          comm_workers_row<P>(),
          row<&P::chunks>("chunks", "N", "Slices of the rows",
                          [](auto&) { return std::vector{2, 3, 4, 6, 8, 12, 16}; }),
          configs_row<P>(),
          symmetric_row<P>(),
      },
      tile_rows<P>(true));
  return table;
}

}  // namespace shingle
