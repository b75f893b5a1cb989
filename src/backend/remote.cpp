#include "remote.hpp"

#include <fmt/format.h>

#include <vector>

#include "shingle/plan/print.hpp"

namespace shingle {
namespace {

/// The ranks whose memory or counters a step uses.
struct Accesses {
  int world;
  std::vector<int> memory{}, counters{};

  void operator()(const Gemm& step) {
    memory = {step.a.rank, step.b.rank};
    place(step.out);
    if (step.epilogue.bias) memory.push_back(step.bias.rank);
    tiles(step.notify);
  }
  void operator()(const Elementwise& step) {
    for (const Placement& from : step.from) place(from);
    place(step.to);
    if (step.epilogue.bias) memory.push_back(step.bias.rank);
    if (step.norm.enabled) memory.push_back(step.norm_weight.rank);
    if (step.norm.residual) memory.insert(memory.end(), {step.residual.slice.rank, step.sum.slice.rank});
    tiles(step.notify);
  }
  void operator()(const Attend& step) {
    memory = {step.q.rank, step.keys.rank, step.values.rank, step.out.slice.rank};
    tiles(step.notify);
  }
  void operator()(const Await& step) { counters = {step.counter.rank}; }
  void operator()(const Notify& step) { counters = {step.counter.rank}; }
  void operator()(const Fill& step) { memory = {step.slice.rank}; }
  void operator()(const Collective& step) { memory = {step.send.rank, step.recv.rank}; }
  void operator()(const Exchange& step) {
    for (const auto& message : step.sends) memory.push_back(message.slice.rank);
    for (const auto& message : step.receives) memory.push_back(message.slice.rank);
  }
  void operator()(const Copy& step) { memory = {step.from.rank, step.to.rank}; }
  void operator()(const Broadcast& step) { memory = {step.from.rank, step.to[0].rank, step.to[1].rank}; }
  void operator()(const Swap& step) { memory = {step.a.rank, step.b.rank}; }

  void tiles(const std::vector<TileNotify>& hooks) {
    for (const TileNotify& hook : hooks) {
      counters.insert(counters.end(), hook.ranks.begin(), hook.ranks.end());
      counters.insert(counters.end(), hook.owners.begin(), hook.owners.end());
    }
  }
  void place(const Placement& at) {
    const auto ranks = ranks_of(at, world);
    memory.insert(memory.end(), ranks.begin(), ranks.end());
  }
};

}  // namespace

std::string remote_access(const Plan& plan) {
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
    const auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
    for (int lane = 0; lane < static_cast<int>(lanes.size()); ++lane) {
      const auto& steps = lanes[static_cast<std::size_t>(lane)].steps;
      for (int step = 0; step < static_cast<int>(steps.size()); ++step) {
        Accesses accesses{plan.problem.world};
        std::visit(accesses, steps[static_cast<std::size_t>(step)]);
        for (const int other : accesses.memory)
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

}  // namespace shingle
