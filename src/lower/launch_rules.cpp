#include "launch_rules.hpp"

#include <algorithm>

#include "plan/accesses.hpp"
#include "plan/steps.hpp"

namespace shingle {
namespace {

/// Rows of the tiles whose kernels have no clusters.
constexpr std::int32_t low_tile = 64;

/// True if a pass does not compute, pick rows, leave out tokens, notify or share a work queue.
bool only_moves(const Plan& plan, const Elementwise& step) {
  const auto dtype = [&](const Placement& at) {
    return plan.buffers[static_cast<std::size_t>(at.slice.buffer)].dtype;
  };
  return step.from.size() == 1 && step.gates.size() <= 1 && step.epilogue == Epilogue{} &&
         step.norm == Norm{} && step.factors == Slice{} && step.notify.empty() && step.queue < 0 &&
         dtype(step.from.front()) == dtype(step.to) && !is_indexed(step.from.front()) &&
         matrix_of_tokens(plan, step) == nullptr;
}

/// True if a pass of a delivery stores to flagged buffers.
bool sends(const Plan& plan, const Elementwise& pass) {
  return plan.buffers[static_cast<std::size_t>(pass.to.slice.buffer)].flagged;
}

}  // namespace

bool counts_arrivals(const Plan& plan, const Step& step) {
  const auto* const notify = std::get_if<Notify>(&step);
  const auto* const await = std::get_if<Await>(&step);
  if (notify == nullptr && await == nullptr) return false;
  const CounterRef& count = notify != nullptr ? notify->counter : await->counter;
  return plan.counters[static_cast<std::size_t>(count.counter)].of_arrivals;
}

bool belongs(const Plan& plan, const Lane& lane, std::size_t first, std::size_t last) {
  const Step& next = lane.steps[last];
  const Step& before = lane.steps[last - 1];
  if (synchronises(next)) {
    const bool ends = std::holds_alternative<Await>(next);
    return counts_arrivals(plan, next) && (ends || std::holds_alternative<Notify>(before));
  }
  const auto* const pass = std::get_if<Elementwise>(&next);
  if (pass == nullptr || std::holds_alternative<Await>(before)) return false;
  // The passes of a kernel run side by side, so none may read what another one stores.
  const auto stored = [&](std::int32_t buffer) {
    return std::any_of(lane.steps.begin() + static_cast<std::ptrdiff_t>(first),
                       lane.steps.begin() + static_cast<std::ptrdiff_t>(last), [&](const Step& step) {
                         const auto* const earlier = std::get_if<Elementwise>(&step);
                         return earlier != nullptr &&
                                !plan.buffers[static_cast<std::size_t>(earlier->to.slice.buffer)].flagged &&
                                (earlier->to.slice.buffer == buffer ||
                                 (earlier->norm.residual && earlier->sum.slice.buffer == buffer));
                       });
  };
  return std::ranges::none_of(pass->from, [&](const Placement& from) { return stored(from.slice.buffer); }) &&
         !(pass->norm.residual && stored(pass->residual.slice.buffer));
}

std::int32_t most_workers(const Gemm& step, std::int32_t capacity, bool early) {
  const std::int32_t most = step.resources.most > 0 ? std::min(step.resources.most, capacity) : capacity;
  const bool waits = early || !std::ranges::all_of(step.gates, &TileGate::of_parts);
  return std::max(waits ? std::min(most, capacity - 1) : most, 1);
}

std::int32_t tiles_of_cluster(const TileGrid& grid) {
  constexpr std::int32_t pair = 2;
  if (grid.loop_count == 0 || grid.tile_rows <= low_tile) return 1;
  const Loop& last = grid.loops[grid.loop_count - 1];
  return last.axis == Axis::m && last.extent % pair == 0 && !last.descending && last.rotation == 0 ? pair : 1;
}

KSplit k_split(std::int32_t tile_rows, std::int32_t cols) {
  constexpr std::int32_t narrow = 128;
  return tile_rows <= low_tile || cols <= narrow ? KSplit::all : KSplit::some;
}

KSplit k_split(const Gemm& step) {
  if (step.live.buffer >= 0) return KSplit::none;
  if (!step.sums.from.empty()) return KSplit::all;
  const bool gated = step.epilogue.activation == Activation::swiglu;
  return k_split(step.grid.tile_rows, gated ? 2 * step.grid.tile_cols : step.grid.tile_cols);
}

bool weights_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step) {
  const auto* const gemm = std::get_if<Gemm>(&lane.steps[step]);
  const auto delivers = [&](std::size_t at) {
    return at < lane.steps.size() && counts_arrivals(plan, lane.steps[at]);
  };
  return gemm != nullptr && gemm->grid.rows <= most_early_rows && gemm->gates.empty() &&
         gemm->b.rank == rank && is_input(plan.buffers[static_cast<std::size_t>(gemm->b.buffer)].role) &&
         ((step > 0 && delivers(step - 1)) || delivers(step + 1));
}

std::size_t sends_until(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step) {
  const auto* const gemm = std::get_if<Gemm>(&lane.steps[step]);
  if (gemm == nullptr || !gemm->gates.empty() || !gemm->notify.empty() || gemm->epilogue != Epilogue{} ||
      !gemm->sums.from.empty() || step + 1 >= lane.steps.size() ||
      !counts_arrivals(plan, lane.steps[step + 1]))
    return 0;
  const std::int32_t product = gemm->out.slice.buffer;
  if (gemm->out.slice.rank != rank || !replicas(gemm->out).empty() ||
      plan.buffers[static_cast<std::size_t>(product)].role != Role::internal)
    return 0;
  std::size_t end = step + 2;
  while (end < lane.steps.size() && belongs(plan, lane, step + 1, end)) ++end;
  std::size_t sent = 0;
  for (std::size_t i = step + 1; i < end; ++i) {
    const auto* const pass = std::get_if<Elementwise>(&lane.steps[i]);
    if (pass == nullptr || !sends(plan, *pass)) continue;
    if (pass->from.front().slice.buffer != product) return 0;
    ++sent;
  }
  const auto uses = [&](const Step& other) {
    return std::ranges::any_of(accesses_of(other, plan.world()).memory, [&](const Accesses::Use& use) {
      return use.rank == rank && use.buffer == product;
    });
  };
  for (const RankPlan& planned : plan.ranks)
    for (const Lane& other : planned.lanes)
      for (std::size_t i = 0; i < other.steps.size(); ++i) {
        const bool own = &other == &lane && i >= step && i < end;
        if (!own && uses(other.steps[i])) return 0;
      }
  return sent > 0 ? end : 0;
}

bool may_start_early(const Plan& plan, std::int32_t rank, const Lane& lane, std::size_t step) {
  if (step == 0) return false;
  const auto at = lane.steps.begin() + static_cast<std::ptrdiff_t>(step);
  if (counts_arrivals(plan, *at))  // a delivery waits for the end of the kernels before it
    return std::holds_alternative<Notify>(*at) &&
           (std::holds_alternative<Gemm>(*(at - 1)) || counts_arrivals(plan, *(at - 1)));
  if (const auto* pass = std::get_if<Elementwise>(&*at)) {
    const auto* const front = std::get_if<Gemm>(&*(at - 1));
    return pass->queue >= 0 && !pass->gates.empty() && front != nullptr && front->gates.empty() &&
           front->grid.tiles() > 0;
  }
  const auto* const gemm = std::get_if<Gemm>(&*at);
  const auto own_input = [&](const Slice& slice) {
    return slice.rank == rank && is_input(plan.buffers[static_cast<std::size_t>(slice.buffer)].role);
  };
  return gemm != nullptr && std::ranges::all_of(gemm->gates, &TileGate::of_parts) && own_input(gemm->a) &&
         own_input(gemm->b) && (!gemm->epilogue.bias || own_input(gemm->bias)) &&
         std::all_of(lane.steps.begin(), at, synchronises);
}

bool is_urgent(const RankPlan& rank, const Lane& lane) {
  const auto attends = [](const Lane& other) {
    return std::ranges::any_of(other.steps, [](const Step& step) {
      return std::holds_alternative<Attend>(step) || std::holds_alternative<AttendBackward>(step);
    });
  };
  // A pass with gates would keep its SMs from the attention while it waits.
  const auto moves = [](const Step& step) {
    const auto* const pass = std::get_if<Elementwise>(&step);
    return pass != nullptr && pass->gates.empty();
  };
  return lane.kind == LaneKind::compute && std::ranges::any_of(lane.steps, moves) &&
         std::ranges::all_of(lane.steps,
                             [&](const Step& step) { return synchronises(step) || moves(step); }) &&
         std::ranges::any_of(rank.lanes, attends);
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
