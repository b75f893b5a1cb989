#include "searched.hpp"

#include <algorithm>

#include "planner/common/param_table.hpp"
#include "search.hpp"

namespace shingle {

std::optional<SignalParams> searched_groups(const Problem& problem, const Machine& machine,
                                            const SignalParams& given) {
  if (!given.group_waves.empty() || given.equal_groups || machine.tiles.empty()) return std::nullopt;
  std::vector<std::int32_t> workers{given.comm_workers};
  if (given.comm_workers == 0 && machine.collective_workers > 0)  // only if collectives take workers
    std::ranges::copy(planner::known_comm_workers(machine), std::back_inserter(workers));
  std::optional<SignalParams> best;
  double best_us = 0;
  for (const std::int32_t taken : workers) {
    SignalParams params = given;
    params.comm_workers = taken;
    const Result<WaveModel> model = wave_model(problem, machine, params);
    if (!model || model->waves() == 0) continue;
    Partition found = search(*model);
    if (best && found.us >= best_us) continue;
    params.group_waves = std::move(found.group_waves);
    best = std::move(params), best_us = found.us;
  }
  return best;
}

}  // namespace shingle
