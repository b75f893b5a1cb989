#include "passes.hpp"

namespace shingle {
namespace {

/// Whether a pass neither computes, nor is counted, nor shared.
bool only_moves(const Plan& plan, const Elementwise& step) {
  const auto dtype = [&](const Placement& at) {
    return plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype;
  };
  return step.from.size() == 1 && step.gates.size() <= 1 && step.epilogue == Epilogue{} &&
         step.norm == Norm{} && step.notify.empty() && step.queue < 0 &&
         dtype(step.from.front()) == dtype(step.to);
}

}  // namespace

bool one_pass(const Plan& plan, const Elementwise& step, const Elementwise& next) {
  if (!only_moves(plan, step) || !only_moves(plan, next)) return false;
  const std::int32_t to = step.to.slice.buffer;
  if (next.to.slice.buffer != to || step.from[0].slice.buffer == to || next.from[0].slice.buffer == to)
    return false;
  Elementwise same = step;
  same.from = next.from, same.to = next.to;
  return same == next;
}

}  // namespace shingle
