#include "workload.hpp"

#include <fmt/format.h>

#include "symmetry.hpp"

namespace shingle::planner {
namespace {

constexpr std::int32_t pass_tile_rows = 16;

Gemm product(const Builder& build, const TileParams& tile, int rank, const Workload::Computation& item,
             std::int64_t first) {
  const TileGrid grid = tile.rows > 0 ? make_grid(item.m, item.n, tile.rows, tile.cols, tile.order)
                                      : build.one_tile(item.m, item.n);
  Slice to = build.rows(build.out, rank, first, item.m);
  to.cols = item.n;
  Gemm gemm;
  gemm.grid = grid;
  gemm.a = build.rows(build.a, rank, 0, item.m);
  gemm.b = build.rows(build.b, rank, 0, item.k);
  gemm.a.cols = item.k;
  gemm.b.cols = item.n;
  gemm.a_rows = RowMap::identity(item.m);
  gemm.out = Builder::in_place(to);
  // The GEMM yields workers to a collective tile by tile. None are reserved for a collective that does not
  // come.
  gemm.resources = {1, build.workers()};
  gemm.stands_for = item.kind;
  return gemm;
}

/// A copy of a part of the payload.
Elementwise pass(const Builder& build, int rank, const Workload::Computation& item, std::int64_t first) {
  Slice from = build.rows(build.payload, rank, 0, item.m), to = build.rows(build.out, rank, first, item.m);
  from.cols = to.cols = item.n;
  Elementwise step;
  step.grid = make_grid(item.m, item.n, pass_tile_rows, static_cast<std::int32_t>(item.n));
  step.from.push_back(Builder::in_place(from));
  step.to = Builder::in_place(to);
  step.resources = {1, build.workers()};
  return step;
}

Step computation(const Builder& build, const TileParams& tile, int rank, const Workload::Computation& item,
                 std::int64_t first) {
  if (item.kind == ComputationKind::pass) return pass(build, rank, item, first);
  return product(build, tile, rank, item, first);
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
  const std::int32_t told = config.channels;
  step.resources = {told > 0 ? told : build.collective_workers(), told};
  return step;
}

/// Reason why the configs do not fit the workload's collectives, or nullopt.
std::optional<Reason> wrong_configs(const Workload& workload, const Machine& machine,
                                    const std::vector<CollectiveConfig>& configs) {
  if (configs.empty()) return std::nullopt;
  if (configs.size() != workload.collectives.size())
    return Reason{fmt::format("{} configs for {} collectives", configs.size(), workload.collectives.size())};
  for (std::size_t j = 0; j < configs.size(); ++j)
    if (const CollectiveKind kind = workload.collectives[j].kind; !nccl_serves(kind, configs[j]))
      return Reason{fmt::format("NCCL has no {} with {}", name(kind), describe(configs[j]))};
  for (const CollectiveConfig& config : configs)
    if (config.channels < 0 || config.channels >= machine.workers || config.chunk_bytes < 0 ||
        config.threads < 0)
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
  return wrong_params(params);
}

Rounding rounding(const Workload& workload) {
  return statements(workload).front();
}

void add_items(Builder& build, const Workload& workload, const TileParams& tile,
               const std::vector<CollectiveConfig>& configs, bool beside) {
  const WorkloadRows rows = rows_of(workload);
  const std::vector<Workload::Computation>& computations = workload.computations;
  const std::vector<Workload::Collective>& collectives = workload.collectives;
  const std::int32_t computed = build.counter("computed", static_cast<std::int64_t>(computations.size()));
  const std::int32_t arrived = build.counter("arrived", static_cast<std::int64_t>(collectives.size()));
  const std::vector<Workload::Item> order = workload.order();
  for (int r = 0; r < build.ranks(); ++r) {
    const Workload::Item* before = nullptr;
    for (const Workload::Item& item : order) {
      const auto i = static_cast<std::size_t>(item.index);
      const std::int32_t lane = item.communicates ? communicate_lane : compute_lane;
      const std::int32_t awaited = item.communicates ? computed : arrived;
      if (beside) {
        for (const std::int32_t other : item.communicates ? collectives[i].after : computations[i].after)
          build.await(r, lane, awaited, other);
      } else if (before && before->communicates != item.communicates) {
        build.await(r, lane, awaited, before->index);
      }
      if (item.communicates) {
        Collective step =
            transfer(build, collectives[i].kind, configs.empty() ? CollectiveConfig{} : configs[i], r,
                     {rows.collectives[i], rows.sent[i]});
        // Without a config NCCL chooses the number of channels. Predictions beside computation assume the
        // machine's.
        if (beside) step.config.channels = step.resources.least;
        build.step(r, lane, std::move(step));
      } else {
        build.step(r, lane, computation(build, tile, r, computations[i], rows.computations[i].first));
      }
      build.notify(r, lane, item.communicates ? arrived : computed, item.index);
      before = &item;
    }
  }
}

}  // namespace shingle::planner
