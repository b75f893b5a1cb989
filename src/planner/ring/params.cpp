// The params of `ring`.
#include "planner/common/param_table.hpp"
#include "planner/common/reach.hpp"

namespace shingle {
namespace planner {

/// Messages, or engines, which take no workers. The choice changes the best workers and slices too.
static std::vector<RingParams> engines_to_try(const Tuning<RingParams>& tuning) {
  if (tuning.fixed.mover != Mover::automatic || !reach_each_other(tuning.problem.world, tuning.machine))
    return {};
  RingParams other = tuning.at;
  other.engines = other.engines == 0 ? 1 : 0;
  if (other.engines == 0 && avoids_messages(tuning.machine, tuning.fixed)) return {};
  other.mover = Mover::automatic;
  other.comm_workers = tuning.fixed.comm_workers, other.slices = tuning.fixed.slices;
  return {other};
}

}  // namespace planner

const planner::ParamTable<RingParams>& RingParams::table() {
  using namespace planner;
  using P = RingParams;
  static const ParamTable<P> table = [] {
    ParamRow<P> engines =
        row<&P::engines>("engines", "N", "Copy engines that move slices (default: none, messages)");
    engines.tried = engines_to_try;
    return ParamTable<P>{
        std::move(engines),
        // No tuner tries stores: on H200 they were slower than `sequential` where a gain was predicted.
        row<&P::mover>("mover", "NAME",
                       "What moves attention's rows: copy-engine or store (default: --engines or messages)"),
        comm_workers_row<P>(),
        row<&P::slices>("slices", "N", "Slices of each rank's rows; with ulysses-attention also of its heads",
                        [](auto&) { return std::vector{1, 2, 3, 4, 6, 8}; }),
        row<&P::row_parallel>(
            "row-parallel", "", "Attention of all queries first, then the projection in slices",
            [](const Tuning<P>& tuning) {
              return tuning.problem.op == Op::attention_reducescatter ? std::vector{false, true}
                                                                      : std::vector<bool>{};
            }),
        unregistered_row<P>(),
        symmetric_row<P>(),
    };
  }();
  return table;
}

}  // namespace shingle
