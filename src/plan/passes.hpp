// How backends whose steps are kernels carry out passes: what is one kernel, and what is several. The
// simulator counts them alike.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Whether a pass follows the groups of its one gate: a kernel for each group, behind one that waits for it.
inline bool by_groups(const Elementwise& step) {
  return step.gates.size() == 1 && step.queue < 0;
}

/// Items [first, last) of a pass behind one group of its gate.
struct GroupOfItems {
  std::int64_t group = 0, first = 0, last = 0;
};
/// What a pass that follows its groups waits for, in order. Groups that hold no tile of its items are not
/// among these: phantom tiles await nothing, so that their count may never come.
std::vector<GroupOfItems> awaited_groups(const Elementwise& step);

/// Whether a step waits in its stream, by a kernel or an event before others: an await, and a pass that
/// follows its groups. Any other that is gated waits in its own kernel, beside which others run.
inline bool waits_in_queue(const Step& step) {
  const auto* pass = std::get_if<Elementwise>(&step);
  return std::holds_alternative<Await>(step) || (pass != nullptr && by_groups(*pass));
}

/// Whether a step and the next one of its lane are one pass: both only move rows, from memory that neither
/// writes, of the same tiles behind the same gates, to the same buffer.
bool one_pass(const Plan& plan, const Elementwise& step, const Elementwise& next);

}  // namespace shingle
