#include "launch_rules.hpp"

#include <algorithm>

#include "plan/steps.hpp"

namespace shingle {
namespace {

/// True if a pass does not compute, notify or share a work queue.
bool only_moves(const Plan& plan, const Elementwise& step) {
  const auto dtype = [&](const Placement& at) {
    return plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype;
  };
  return step.from.size() == 1 && step.gates.size() <= 1 && step.epilogue == Epilogue{} &&
         step.norm == Norm{} && step.notify.empty() && step.queue < 0 &&
         dtype(step.from.front()) == dtype(step.to);
}

}  // namespace

bool may_start_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step) {
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

bool fuse(const Plan& plan, const Elementwise& step, const Elementwise& next) {
  if (!only_moves(plan, step) || !only_moves(plan, next)) return false;
  const std::int32_t to = step.to.slice.buffer;
  if (next.to.slice.buffer != to || step.from[0].slice.buffer == to || next.from[0].slice.buffer == to)
    return false;
  Elementwise same = step;
  same.from = next.from, same.to = next.to;
  return same == next;
}

}  // namespace shingle
