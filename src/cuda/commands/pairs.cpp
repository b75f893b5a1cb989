// Whether passes beside products take SMs in pairs, as clusters of two CTAs.
//
// A product in clusters of two cannot use a single free SM, so passes beside it should not leave one. But a
// pair must be free: a gated step in single CTAs may hold one SM of each pair, and wait for that very pass.
// Where there is no product, each CTA takes the first SM that attention leaves.
#include <algorithm>
#include <vector>

#include "command.hpp"
#include "plan/steps.hpp"

namespace shingle::cuda {

bool passes_take_pairs(const Plan& plan, int rank) {
  if (plan.workload() == nullptr && plan.problem().traits().shards_tokens()) return false;
  bool passes = false;
  std::vector<const Gemm*> gated;
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (const Step& step : lane.steps)
      if (const auto* pass = std::get_if<Elementwise>(&step)) {
        if (!pass->gates.empty() && !waits_in_queue(step)) return false;
        passes = passes || (pass->gates.empty() && !row_wise(*pass));
      } else if (const auto* gemm = std::get_if<Gemm>(&step)) {
        if (!gemm->gates.empty() && gemm->grid.tiles() > 0) gated.push_back(gemm);
      }
  return passes &&
         std::ranges::all_of(gated, [&](const Gemm* gemm) { return ctas_of_cluster(plan, *gemm) % 2 == 0; });
}

}  // namespace shingle::cuda
