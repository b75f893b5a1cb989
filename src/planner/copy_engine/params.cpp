// The params of `copy-engine`.
#include "planner/common/param_table.hpp"

namespace shingle {

const planner::ParamTable<CopyEngineParams>& CopyEngineParams::table() {
  using namespace planner;
  using P = CopyEngineParams;
  static const ParamTable<P> table = joined(
      {
          row<&P::variant>("variant", "NAME", "pcpy, bcst, swap, b2b, ring, or auto (the default: by size)",
                           [](auto&) {
                             return std::vector{CopyVariant::pcpy, CopyVariant::bcst, CopyVariant::swap,
                                                CopyVariant::b2b, CopyVariant::ring};
                           }),
          row<&P::engines>("engines", "N", "Engines of each rank (default: the variant's)"),
          row<&P::prelaunch>("prelaunch", "", "Queue commands in the engines ahead of their trigger",
                             [](auto&) { return std::vector{false, true}; }),
          row<&P::poll>("poll", "WHOSE",
                        "Flag that engines poll: engine (one each, the default), rank or collective"),
          row<&P::trigger>("trigger", "WHO",
                           "What starts engines: host (the default), or direct: the GEMM that made the data",
                           [](auto&) { return std::vector{EngineTrigger::host, EngineTrigger::direct}; }),
          row<&P::launchers>("launchers", "N",
                             "Host threads that create the commands of all ranks (default: 1)"),
          row<&P::sum_slices>("sum-slices", "N", "Slices of each shard: one is summed while the next comes",
                              [](auto& tuning) {
                                return tuning.problem.traits().reduces() ? std::vector{1, 4, 16}
                                                                         : std::vector<std::int32_t>{};
                              }),
          row<&P::sum_workers>("sum-workers", "N", "Workers that sum (default: all)"),
          unregistered_row<P>(),
          symmetric_row<P>(),
      },
      tile_rows<P>());
  return table;
}

}  // namespace shingle
