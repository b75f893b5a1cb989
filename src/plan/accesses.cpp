#include "accesses.hpp"

#include <algorithm>
#include <initializer_list>

namespace shingle {
namespace {

struct Collect {
  int world;
  Accesses found{};

  void operator()(const Gemm& step) {
    slices({step.a, step.b});
    place(step.out);
    for (const std::vector<Placement>* sums : {&step.sums.from, &step.sums.to})
      for (const Placement& at : *sums) place(at);
    if (step.epilogue.bias) slices({step.bias});
    if (step.live.buffer >= 0) slices({step.live});
    tiles(step.notify);
  }
  void operator()(const Elementwise& step) {
    for (const Placement& from : step.from) {
      place(from);
      if (const auto* picked = std::get_if<placement::Indexed>(&from.form)) slices({picked->index});
    }
    place(step.to);
    if (step.factors.buffer >= 0) slices({step.factors});
    if (step.epilogue.bias) slices({step.bias});
    if (step.norm.enabled) slices({step.norm_weight});
    if (step.norm.residual) slices({step.residual.slice, step.sum.slice});
    tiles(step.notify);
  }
  void operator()(const Attend& step) {
    slices({step.q, step.keys, step.values});
    place(step.out);
    if (step.lse.buffer >= 0) slices({step.lse});
    tiles(step.notify);
  }
  void operator()(const Merge& step) {
    for (const Merge::Part& part : step.parts) slices({part.value, part.lse});
    place(step.to);
    if (step.lse.buffer >= 0) slices({step.lse});
    tiles(step.notify);
  }
  void operator()(const AttendBackward& step) {
    slices({step.q, step.grad, step.attended, step.lse, step.keys, step.values, step.q_grad, step.keys_grad,
            step.values_grad});
    tiles(step.notify);
  }
  void operator()(const AssignSlots& step) {
    slices({step.ids, step.row_of, step.slot_of, step.counts, step.dropped});
  }
  void operator()(const MergeSlots& step) {
    slices({step.counts, step.slot_of});
    for (const Slice* made : outputs_of(step)) slices({*made});
  }
  void operator()(const Await& step) { found.counters = {step.counter}; }
  void operator()(const Notify& step) { found.counters = {step.counter}; }
  void operator()(const Fill& step) { slices({step.slice}); }
  void operator()(const Collective& step) { slices({step.send, step.recv}); }
  void operator()(const Exchange& step) {
    for (const auto& message : step.sends) slices({message.slice});
    for (const auto& message : step.receives) slices({message.slice});
  }
  void operator()(const Copy& step) { slices({step.from, step.to}); }
  void operator()(const Broadcast& step) { slices({step.from, step.to[0], step.to[1]}); }
  void operator()(const Swap& step) { slices({step.a, step.b}); }

  void slices(std::initializer_list<Slice> used) {
    for (const Slice& slice : used) found.memory.push_back({slice.rank, slice.buffer});
  }
  void tiles(const std::vector<TileNotify>& hooks) {
    for (const TileNotify& hook : hooks)
      for (const auto* ranks : {&hook.ranks, &hook.owners})
        for (const std::int32_t rank : *ranks) found.counters.push_back({hook.counter, rank, 0});
  }
  void place(const Placement& at) {
    for (const std::int32_t rank : ranks_of(at, world)) found.memory.push_back({rank, at.slice.buffer});
  }
};

}  // namespace

Accesses accesses_of(const Step& step, int world) {
  Collect collect{world};
  std::visit(collect, step);
  return std::move(collect.found);
}

bool has_flagged(const Plan& plan) {
  return std::ranges::any_of(plan.buffers, &Buffer::flagged);
}

}  // namespace shingle
