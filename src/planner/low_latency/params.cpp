// The params of `low-latency`.
#include "planner/common/param_table.hpp"

namespace shingle {

const planner::ParamTable<LowLatencyParams>& LowLatencyParams::table() {
  using namespace planner;
  using P = LowLatencyParams;
  static const ParamTable<P> table = {
      row<&P::hops>(
          "hops", "N", "Hops of an all-reduce: 1 (to all ranks) or 2 (default: the faster by prediction)",
          [](const Tuning<P>& tuning) {
            const bool everywhere = tuning.problem.traits().reduces() && !tuning.problem.traits().scatters();
            return everywhere ? std::vector{1, 2} : std::vector<std::int32_t>{};
          }),
      symmetric_row<P>(),
  };
  return table;
}

}  // namespace shingle
