#include "workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine_collectives.hpp"
#include "planner/common/experts.hpp"
#include "planner/common/symmetry.hpp"

namespace shingle::planner {
namespace {

constexpr std::int32_t pass_tile_rows = 16;

/// Where a computation is stored, and how many workers it leaves idle.
struct Place {
  std::int64_t first = 0;  ///< row of the output
  std::int32_t spared = 0;
};

/// The groups of rows that a weight has, in A as in the output.
std::vector<RowGroup> groups_of(const Workload::Computation& item) {
  std::vector<RowGroup> groups;
  std::int64_t row = 0;
  for (std::size_t weight = 0; weight < item.groups.size(); row += item.groups[weight++])
    if (item.groups[weight] > 0)
      groups.push_back({row, row, item.groups[weight], static_cast<std::int32_t>(weight)});
  return groups;
}

Gemm product(const Builder& build, const Machine& machine, const TileParams& tile, int rank,
             const Workload::Computation& item, const Place& at) {
  const TileGrid grid = tile.rows > 0 ? make_grid(item.m, item.n, tile.rows, tile.cols, tile.order)
                                      : build.one_tile(item.m, item.n);
  Slice to = build.rows(build.out, rank, at.first, item.m);
  to.cols = item.n;
  Gemm gemm;
  gemm.grid = grid;
  gemm.a = build.rows(build.a, rank, 0, item.m);
  gemm.b = build.rows(build.b, rank, 0, item.weights() * item.k);
  gemm.a.cols = item.k;
  gemm.b.cols = item.n;
  if (item.groups.empty()) gemm.a_rows = RowMap::identity(item.m);
  gemm.out = Builder::in_place(to);
  // The GEMM yields workers to a collective tile by tile. None are reserved for a collective that does not
  // come, unless its config asks for them.
  gemm.resources = {1, build.workers() - at.spared};
  gemm.stands_for = item.kind;
  return item.groups.empty() ? gemm : grouped(build, machine, tile, std::move(gemm), groups_of(item));
}

/// A copy of a part of the payload.
Elementwise pass(const Builder& build, int rank, const Workload::Computation& item, const Place& at) {
  Slice from = build.rows(build.payload, rank, 0, item.m), to = build.rows(build.out, rank, at.first, item.m);
  from.cols = to.cols = item.n;
  Elementwise step;
  step.grid = make_grid(item.m, item.n, pass_tile_rows, static_cast<std::int32_t>(item.n));
  step.from.push_back(Builder::in_place(from));
  step.to = Builder::in_place(to);
  step.resources = {1, build.workers() - at.spared};
  return step;
}

Step computation(const Builder& build, const Machine& machine, const TileParams& tile, int rank,
                 const Workload::Computation& item, const Place& at) {
  if (item.kind == ComputationKind::pass) return pass(build, rank, item, at);
  return product(build, machine, tile, rank, item, at);
}

/// Rows of the output that a collective fills, and rows of the payload that it sends.
struct Moved {
  WorkloadRows::Result to;
  std::int64_t sent = 0;
};

Collective transfer(const Builder& build, CollectiveKind kind, const CollectiveConfig& config, int rank,
                    const Moved& rows) {
  const auto& [first, count] = rows.to;
  Collective step;
  step.kind = kind;
  step.send = build.rows(build.payload, rank, 0, rows.sent);
  step.recv = build.rows(build.out, rank, first, count);
  if (step.kind == CollectiveKind::alltoall) {
    step.send_rows.assign(static_cast<std::size_t>(build.world()), count / build.world());
    step.recv_rows = step.send_rows;
  }
  step.config = config;
  step.config.spared = step.config.delay = 0;  // of the computations beside it
  const std::int32_t told = config.channels;
  step.resources = {told > 0 ? told : build.collective_workers(), told};
  return step;
}

/// The computations [first, second) that may run beside a collective: none awaits it, and it awaits none.
std::pair<std::int32_t, std::int32_t> beside(const Workload& list, std::size_t collective) {
  std::int32_t first = 0, last = static_cast<std::int32_t>(list.computations.size());
  for (std::size_t j = 0; j <= collective; ++j)
    for (const std::int32_t other : list.collectives[j].after) first = std::max(first, other + 1);
  for (std::int32_t i = last; i-- > 0;)
    if (std::ranges::any_of(list.computations[static_cast<std::size_t>(i)].after, [&](std::int32_t other) {
          return other >= static_cast<std::int32_t>(collective);
        }))
      last = i;
  return {first, std::max(first, last)};
}

/// The workload with collectives that also await the computations that their configs name. These run beside
/// the collective, so that no items wait for each other.
Workload delayed(Workload list, const std::vector<CollectiveConfig>& configs) {
  for (std::size_t j = 0; j < configs.size(); ++j) {
    const auto [first, last] = beside(list, j);
    if (const std::int32_t awaited = std::min(first + configs[j].delay, last); awaited > first)
      list.collectives[j].after.push_back(awaited - 1);
  }
  return list;
}

/// By computation: workers that it leaves idle for the collectives beside it.
std::vector<std::int32_t> spared_by(const Workload& list, const std::vector<CollectiveConfig>& configs) {
  std::vector<std::int32_t> spared(list.computations.size(), 0);
  for (std::size_t j = 0; j < configs.size(); ++j)
    for (auto [i, last] = beside(list, j); i < last; ++i)
      spared[static_cast<std::size_t>(i)] = std::max(spared[static_cast<std::size_t>(i)], configs[j].spared);
  return spared;
}

/// Reason why the configs do not fit the workload's collectives, or nullopt.
std::optional<Reason> wrong_configs(const Workload& workload, const Machine& machine,
                                    const std::vector<CollectiveConfig>& configs) {
  if (configs.empty()) return std::nullopt;
  if (configs.size() != workload.collectives.size())
    return Reason{fmt::format("{} configs for {} collectives", configs.size(), workload.collectives.size())};
  for (std::size_t j = 0; j < configs.size(); ++j)
    if (const CollectiveKind kind = workload.collectives[j].kind; !serves(kind, configs[j]))
      return Reason{fmt::format("there is no {} with {}", name(kind), describe(configs[j]))};
  for (const CollectiveConfig& config : configs)
    if (std::min({config.channels, config.threads, config.spared, config.delay}) < 0 ||
        std::max(config.channels, config.spared) >= machine.workers || config.chunk_bytes < 0)
      return Reason{fmt::format("a collective with {} leaves no worker of {} for computation",
                                describe(config), machine.workers)};
  return std::nullopt;
}

}  // namespace

std::optional<Reason> infeasible(const Workload& workload, const Machine& machine, const Params& params,
                                 const std::vector<CollectiveConfig>& configs) {
  if (auto reason = asymmetric(workload, machine, is_symmetric(params))) return reason;
  if (auto reason = no_worker_left(machine, machine.collective_workers)) return reason;
  if (auto reason = wrong_configs(workload, machine, configs)) return reason;
  if (auto reason = EngineCollectives::infeasible(workload, machine, configs, is_symmetric(params)))
    return reason;
  return wrong_params(params);
}

Rounding rounding(const Workload& workload, const std::vector<CollectiveConfig>& configs) {
  for (std::size_t j = 0; j < configs.size(); ++j)
    if (configs[j].by_engines() && EngineCollectives::sums(workload.collectives[j].kind))
      return {Summing::steps, workload.dtype};
  return statements(workload).front();
}

void add_items(CopyEngineBuilder& build, const Workload& workload, const Machine& machine,
               const TileParams& tile, const std::vector<CollectiveConfig>& configs, bool beside) {
  const WorkloadRows rows = rows_of(workload);
  const Workload list = beside ? delayed(workload, configs) : workload;
  const std::int32_t computed =
      build.counter("computed", static_cast<std::int64_t>(list.computations.size()));
  const std::int32_t arrived = build.counter("arrived", static_cast<std::int64_t>(list.collectives.size()));
  EngineCollectives engines(build, workload, machine, configs);
  const std::vector<std::int32_t> spared = beside ? spared_by(list, configs) : std::vector<std::int32_t>{};
  const std::vector<Workload::Item> order = list.order();
  for (int r = 0; r < build.ranks(); ++r) {
    const Workload::Item* before = nullptr;
    for (const Workload::Item& item : order) {
      const auto i = static_cast<std::size_t>(item.index);
      const bool by_engines = item.communicates && engines.move(i);
      const std::int32_t lane = item.communicates ? communicate_lane : compute_lane;
      std::vector<CounterRef> after;  // of a collective by engines
      const auto await = [&](std::int32_t counter, std::int32_t other) {
        if (by_engines)
          after.push_back({counter, r, other});
        else if (counter == arrived && beside && engines.move(static_cast<std::size_t>(other)))
          engines.await(build, r, lane, static_cast<std::size_t>(other));
        else
          build.await(r, lane, counter, other);
      };
      if (beside) {
        for (const std::int32_t other :
             item.communicates ? list.collectives[i].after : list.computations[i].after)
          await(item.communicates ? computed : arrived, other);
      } else if (before &&
                 (by_engines || before->communicates != item.communicates ||
                  (before->communicates && engines.move(static_cast<std::size_t>(before->index))))) {
        await(before->communicates ? arrived : computed, before->index);
      }
      if (by_engines) {
        engines.begin(build, r, i, after);
        if (!beside) {
          engines.await(build, r, compute_lane, i);
          build.notify(r, compute_lane, arrived, item.index);
        }
      } else if (item.communicates) {
        Collective step =
            transfer(build, list.collectives[i].kind, configs.empty() ? CollectiveConfig{} : configs[i], r,
                     {rows.collectives[i], rows.sent[i]});
        // Without a config NCCL chooses the number of channels. Predictions beside computation assume the
        // machine's.
        if (beside) step.config.channels = step.resources.least;
        build.step(r, lane, std::move(step));
      } else {
        build.step(r, lane,
                   computation(build, machine, tile, r, list.computations[i],
                               {rows.computations[i].first, spared.empty() ? 0 : spared[i]}));
      }
      if (!by_engines) build.notify(r, lane, item.communicates ? arrived : computed, item.index);
      before = &item;
    }
  }
}

}  // namespace shingle::planner
