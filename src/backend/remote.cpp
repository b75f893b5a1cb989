#include "remote.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <set>
#include <vector>

#include "shingle/plan/print.hpp"

namespace shingle {
namespace {

/// Ranks whose memory or counters a step uses, and the buffers that it uses there.
struct Accesses {
  struct Use {
    std::int32_t rank;
    std::int32_t buffer;
  };
  int world;
  std::vector<Use> memory{};
  std::vector<std::int32_t> counters{};

  void operator()(const Gemm& step) {
    slices({step.a, step.b});
    place(step.out);
    if (step.epilogue.bias) slices({step.bias});
    tiles(step.notify);
  }
  void operator()(const Elementwise& step) {
    for (const Placement& from : step.from) place(from);
    place(step.to);
    if (step.epilogue.bias) slices({step.bias});
    if (step.norm.enabled) slices({step.norm_weight});
    if (step.norm.residual) slices({step.residual.slice, step.sum.slice});
    tiles(step.notify);
  }
  void operator()(const Attend& step) {
    slices({step.q, step.keys, step.values});
    place(step.out);
    tiles(step.notify);
  }
  void operator()(const Await& step) { counters = {step.counter.rank}; }
  void operator()(const Notify& step) { counters = {step.counter.rank}; }
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
    for (const Slice& slice : used) memory.push_back({slice.rank, slice.buffer});
  }
  void tiles(const std::vector<TileNotify>& hooks) {
    for (const TileNotify& hook : hooks) {
      counters.insert(counters.end(), hook.ranks.begin(), hook.ranks.end());
      counters.insert(counters.end(), hook.owners.begin(), hook.owners.end());
    }
  }
  void place(const Placement& at) {
    for (const std::int32_t rank : ranks_of(at, world)) memory.push_back({rank, at.slice.buffer});
  }
};

}  // namespace

std::string remote_access(const Plan& plan) {
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
    const auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
    for (int lane = 0; lane < static_cast<int>(lanes.size()); ++lane) {
      const auto& steps = lanes[static_cast<std::size_t>(lane)].steps;
      for (int step = 0; step < static_cast<int>(steps.size()); ++step) {
        Accesses accesses{plan.world()};
        std::visit(accesses, steps[static_cast<std::size_t>(step)]);
        for (const auto& [other, buffer] : accesses.memory)
          if (other != rank)
            return fmt::format("{} uses memory of rank {}", where(plan, rank, lane, step), other);
        for (const int other : accesses.counters)
          if (other != rank)
            return fmt::format("{} uses counters of rank {}", where(plan, rank, lane, step), other);
      }
    }
  }
  return {};
}

std::vector<std::int32_t> remote_user_buffers(const Plan& plan) {
  std::set<std::int32_t> found;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const Lane& lane : plan.ranks[rank].lanes)
      for (const Step& step : lane.steps) {
        Accesses accesses{plan.world()};
        std::visit(accesses, step);
        for (const auto& [other, buffer] : accesses.memory)
          if (other != static_cast<std::int32_t>(rank) &&
              plan.buffers[static_cast<std::size_t>(buffer)].role != Role::internal)
            found.insert(buffer);
      }
  return {found.begin(), found.end()};
}

}  // namespace shingle
