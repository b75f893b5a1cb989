#include "early.hpp"

#include <algorithm>

#include "plan/steps.hpp"

namespace shingle {

bool begins_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step) {
  if (step == 0) return false;
  const auto at = lane.steps.begin() + static_cast<std::ptrdiff_t>(step);
  if (const auto* pass = std::get_if<Elementwise>(&*at)) {
    const auto* const front = std::get_if<Gemm>(&*(at - 1));
    return pass->queue >= 0 && !pass->gates.empty() && front != nullptr && front->gates.empty() &&
           front->grid.tiles() > 0;
  }
  const auto* const gemm = std::get_if<Gemm>(&*at);
  const auto own_input = [&](const Slice& slice) {
    return slice.rank == rank && is_input(plan.buffers[static_cast<std::size_t>(slice.buffer)].role);
  };
  return gemm != nullptr && gemm->gates.empty() && own_input(gemm->a) && own_input(gemm->b) &&
         (!gemm->epilogue.bias || own_input(gemm->bias)) && std::all_of(lane.steps.begin(), at, synchronises);
}

}  // namespace shingle
