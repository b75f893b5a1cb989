// The params of `sequential`.
#include "planner/common/param_table.hpp"

namespace shingle {

const planner::ParamTable<SequentialParams>& SequentialParams::table() {
  using namespace planner;
  using P = SequentialParams;
  static const ParamTable<P> table = joined(
      {comm_workers_row<P>(), configs_row<P>(), slots_row<P>(), symmetric_row<P>()}, tile_rows<P>(true));
  return table;
}

}  // namespace shingle
