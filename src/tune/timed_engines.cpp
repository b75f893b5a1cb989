// Plans that time copy engines.
#include <utility>

#include "timed_plans.hpp"

namespace shingle::tuning {
namespace {

/// Where the commands of an engine read and write: two regions of `rows` rows per engine on every rank.
struct Regions {
  std::int32_t from = 0, to = 0;  // buffers
  std::int64_t rows = 0;

  Slice at(std::int32_t buffer, int rank, int region) const {
    return {buffer, rank, region * rows, rows, 0, kibi};
  }
};

Step command(const EngineWork& work, const Regions& regions, int rank, int next, int engine) {
  const Slice from = regions.at(regions.from, rank, 2 * engine);
  const Slice first = regions.at(regions.to, next, 2 * engine),
              second = regions.at(regions.to, next, 2 * engine + 1);
  switch (work.kind) {
    case EngineWork::Kind::broadcast:
      return Broadcast{from, {first, second}};
    case EngineWork::Kind::swap:
      return Swap{from, first};
    default:
      return Copy{from, first};
  }
}

}  // namespace

Plan TimedPlans::engines(const EngineWork& work) const {
  Plan plan = sequential(moving(Op::allreduce, 64, 16));
  plan.mechanism = Mechanism::copy_engine;
  const auto by_rank = [&](auto value) { return std::vector(static_cast<std::size_t>(world_), value); };
  const auto row_bytes = static_cast<double>(kibi) * static_cast<double>(size_bytes(dtype_));
  const auto first = static_cast<std::int32_t>(plan.buffers.size());
  const Regions regions{first, first + 1, larger(static_cast<std::int64_t>(work.bytes / row_bytes), 1)};
  for (const char* name : {"moved", "come"})
    plan.buffers.push_back({name, Role::internal, dtype_, by_rank(2 * work.engines * regions.rows), kibi, 1});
  const auto once = [&](int entries) {
    return by_rank(std::vector<std::uint32_t>(static_cast<std::size_t>(entries), 1));
  };
  plan.counters = {{"trigger", CounterKind::add, once(work.engines)},
                   {"sent", CounterKind::set, once(work.engines * work.notifies)}};
  for (int rank = 0; rank < world_; ++rank) {
    const int next = (rank + 1) % world_;
    RankPlan made;
    Lane compute{LaneKind::compute, "compute", {}};
    made.issue.assign(static_cast<std::size_t>(work.engines), 0);
    for (int e = 0; e < work.engines; ++e) compute.steps.push_back(Notify{{0, rank, e}, 1});
    made.lanes.resize(1);
    for (int e = 0; e < work.engines; ++e) {
      Lane engine{
          LaneKind::copy, "engine", {Await{{0, rank, e}, 1}}, {-1, work.prelaunched, !work.prelaunched, {}}};
      engine.steps.insert(engine.steps.end(), static_cast<std::size_t>(work.commands),
                          command(work, regions, rank, next, e));
      for (int i = 0; i < work.notifies; ++i)
        engine.steps.push_back(Notify{{1, next, e * work.notifies + i}, 1});
      made.issue.insert(made.issue.end(), engine.steps.size(), static_cast<std::int32_t>(made.lanes.size()));
      made.lanes.push_back(std::move(engine));
    }
    for (int e = 0; e < work.engines; ++e) {
      compute.steps.push_back(Await{{1, rank, (e + 1) * work.notifies - 1}, 1});
      made.issue.push_back(0);
    }
    made.lanes.front() = std::move(compute);
    plan.ranks[static_cast<std::size_t>(rank)] = std::move(made);
  }
  return plan;
}

}  // namespace shingle::tuning
