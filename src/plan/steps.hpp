// What a step is, seen by itself: its hooks and grid, and whether it waits.
#pragma once

#include <cstdint>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Hooks and grid of a tiled step; null of any other.
const std::vector<TileGate>* gates_of(const Step& step);
const std::vector<TileNotify>* notifies_of(const Step& step);
const TileGrid* grid_of(const Step& step);
/// The queue that a step shares with steps of other lanes, or -1.
std::int32_t queue_of(const Step& step);

/// Items of a tiled step at which a run begins or ends, ascending; {0, 1} for other steps.
std::vector<std::int64_t> run_boundaries(const Step& step);

/// Whether a step waits or counts, and does nothing else.
bool synchronises(const Step& step);

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

}  // namespace shingle
