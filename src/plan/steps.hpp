// Properties of a single step: hooks, grid, and whether it waits.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Hooks and grid of a tiled step; null for any other step.
const std::vector<TileGate>* gates_of(const Step& step);
const std::vector<TileNotify>* notifies_of(const Step& step);
const TileGrid* grid_of(const Step& step);
/// The user's matrix with a row for each token (counts_tokens()) that a pass loads or stores without an
/// index; null: none. In a call it may have fewer rows than the pass, which then leaves the others alone.
const Slice* matrix_of_tokens(const Plan& plan, const Elementwise& pass);
/// Rows of a group with a count that have a token if each expert is chosen equally often: those that
/// predictions assume.
std::int64_t expected_rows_of_group(const Problem& problem, const RowGroup& group);
/// Work queue that the step shares with steps of other lanes; -1: none.
std::int32_t queue_of(const Step& step);

/// Items of a tiled step at which a run begins or ends, ascending; {0, 1} for other steps.
std::vector<std::int64_t> run_boundaries(const Step& step);

/// True if the result of an Attend or Merge step with this log-sum-exp is a part of an attention. A step of a
/// complete one stores it for the user, or not at all.
inline bool is_part(const Plan& plan, const Slice& lse) {
  return lse.buffer >= 0 && plan.buffers[static_cast<std::size_t>(lse.buffer)].role == Role::internal;
}

/// True if a step only awaits or notifies.
bool synchronises(const Step& step);

/// True if a pass follows the groups of its one gate: for each group a wait, then a kernel.
inline bool by_groups(const Elementwise& step) {
  return step.gates.size() == 1 && step.queue < 0;
}

/// Items [first, last) of a pass that belong to one group of its gate.
struct GroupOfItems {
  std::int64_t group = 0, first = 0, last = 0;
};
/// Groups that a pass awaits if it follows groups, in order. Groups without a tile among its items are left
/// out: phantom tiles await nothing, so such a group's count may never be reached.
std::vector<GroupOfItems> awaited_groups(const Elementwise& step);

/// True if a step waits in its stream, by an event or a kernel in front of later ones. These are awaits, and
/// passes that follow their groups. Other gated steps wait inside their own kernel, beside which other
/// kernels run.
inline bool waits_in_queue(const Step& step) {
  const auto* pass = std::get_if<Elementwise>(&step);
  return std::holds_alternative<Await>(step) || (pass != nullptr && by_groups(*pass));
}

}  // namespace shingle
