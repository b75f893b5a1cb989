// Plans of workloads, for the planners `sequential` and `chunked`.
#pragma once

#include "planner/copy_engine/transfers.hpp"

namespace shingle::planner {

/// Reason why no mechanism serves a workload with these params, or nullopt. `configs` are those of the
/// params.
std::optional<Reason> infeasible(const Workload& workload, const Machine& machine, const Params& params,
                                 const std::vector<CollectiveConfig>& configs);

/// Adds the steps: computations in order on one lane, collectives of NCCL on another, and those of copy
/// engines on the engines' lanes. With `beside`, each item awaits only the items that the lists name.
/// Otherwise it awaits all items before it in sequential order. Without a tile, products are calls of
/// cuBLASLt or oneDNN, and grouped products have the machine's.
void add_items(CopyEngineBuilder& build, const Workload& workload, const Machine& machine,
               const TileParams& tile, const std::vector<CollectiveConfig>& configs, bool beside);

/// Rounding of a workload's plans.
Rounding rounding(const Workload& workload, const std::vector<CollectiveConfig>& configs);

/// The plan of a mechanism's params; `beside` as in add_items().
template <class P>
Result<Plan> plan_workload(const Workload& workload, const Machine& host, const P& params, bool beside) {
  workload.validate();
  const Machine machine = with_comm_workers(host, params.comm_workers);
  if (auto reason = infeasible(workload, machine, params, params.configs)) return *reason;
  P chosen;
  chosen.comm_workers = params.comm_workers;
  chosen.symmetric = params.symmetric;
  chosen.configs = params.configs;
  if (params.tile.rows > 0 || params.tile.cols > 0) {
    const TileSize tile = tile_size(machine, params.tile);
    chosen.tile = {tile.rows, tile.cols, params.tile.order};
  }
  CopyEngineBuilder build(workload, machine, chosen, {.trigger = EngineTrigger::direct});
  add_items(build, workload, machine, chosen.tile, chosen.configs, beside);
  return std::move(build).finish(rounding(workload, chosen.configs));
}

}  // namespace shingle::planner
