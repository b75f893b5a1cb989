#include "steps.hpp"

#include <algorithm>

#include "shingle/plan/shapes.hpp"

namespace shingle {

const std::vector<TileGate>* gates_of(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return &gemm->gates;
  if (const auto* pass = std::get_if<Elementwise>(&step)) return &pass->gates;
  if (const auto* attend = std::get_if<Attend>(&step)) return &attend->gates;
  if (const auto* merge = std::get_if<Merge>(&step)) return &merge->gates;
  if (const auto* back = std::get_if<AttendBackward>(&step)) return &back->gates;
  return nullptr;
}

const std::vector<TileNotify>* notifies_of(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return &gemm->notify;
  if (const auto* pass = std::get_if<Elementwise>(&step)) return &pass->notify;
  if (const auto* attend = std::get_if<Attend>(&step)) return &attend->notify;
  if (const auto* merge = std::get_if<Merge>(&step)) return &merge->notify;
  if (const auto* back = std::get_if<AttendBackward>(&step)) return &back->notify;
  return nullptr;
}

const TileGrid* grid_of(const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step)) return &gemm->grid;
  if (const auto* pass = std::get_if<Elementwise>(&step)) return &pass->grid;
  if (const auto* attend = std::get_if<Attend>(&step)) return &attend->grid;
  if (const auto* merge = std::get_if<Merge>(&step)) return &merge->grid;
  if (const auto* back = std::get_if<AttendBackward>(&step)) return &back->grid;
  return nullptr;
}

const Slice* matrix_of_tokens(const Plan& plan, const Elementwise& pass) {
  if (plan.workload() != nullptr || !plan.problem().has_slots()) return nullptr;
  const auto counted = [&](const Placement& at) {
    return !is_indexed(at) &&
           counts_tokens(plan.problem(), plan.buffers[static_cast<std::size_t>(at.slice.buffer)].role);
  };
  if (counted(pass.to)) return &pass.to.slice;
  const auto found = std::ranges::find_if(pass.from, counted);
  if (found != pass.from.end()) return &found->slice;
  return pass.factors.buffer >= 0 && counted({pass.factors}) ? &pass.factors : nullptr;
}

std::int64_t expected_rows_of_group(const Problem& problem, const RowGroup& group) {
  return problem.expected_rows(larger(group.rows / problem.experts.capacity, std::int64_t{1}));
}

std::int32_t queue_of(const Step& step) {
  const auto* pass = std::get_if<Elementwise>(&step);
  return pass ? pass->queue : -1;
}

std::vector<std::int64_t> run_boundaries(const Step& step) {
  std::int64_t first = 0, last = 1;
  if (const auto* gemm = std::get_if<Gemm>(&step)) last = gemm->grid.positions();
  if (const auto* attend = std::get_if<Attend>(&step)) last = attend->grid.positions();
  if (const auto* merge = std::get_if<Merge>(&step)) last = merge->grid.positions();
  if (const auto* back = std::get_if<AttendBackward>(&step)) last = back->grid.positions();
  if (const auto* pass = std::get_if<Elementwise>(&step)) first = pass->first, last = last_item(*pass);
  std::vector<std::int64_t> bounds{first, last};
  const auto cut = [&](const std::vector<std::int64_t>& ends) {
    for (const std::int64_t end : ends)
      if (end > first && end < last) bounds.push_back(end);
  };
  if (const auto* gates = gates_of(step))
    for (const TileGate& gate : *gates) cut(gate.ends);
  if (const auto* notifies = notifies_of(step))
    for (const TileNotify& notify : *notifies) cut(notify.ends);
  std::sort(bounds.begin(), bounds.end());
  // A step without items is one empty run, so that it keeps its place in the lane.
  if (first == last) return {first, last};
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  return bounds;
}

bool synchronises(const Step& step) {
  return std::holds_alternative<Await>(step) || std::holds_alternative<Notify>(step);
}

std::vector<GroupOfItems> awaited_groups(const Elementwise& step) {
  std::vector<GroupOfItems> groups;
  const TileGate& gate = step.gates.front();
  std::int64_t first = step.first;
  for (std::size_t g = 0; g < gate.ends.size(); ++g) {
    const std::int64_t last = smaller(gate.ends[g], last_item(step));
    if (last <= first) continue;
    if (step.grid.tiles_before(last) > step.grid.tiles_before(first))
      groups.push_back({static_cast<std::int64_t>(g), first, last});
    first = last;
  }
  return groups;
}

}  // namespace shingle
