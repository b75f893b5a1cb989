#include "workload.hpp"

#include <fmt/format.h>

namespace shingle::planner {
namespace {

Gemm product(const Builder& build, const TileParams& tile, int rank, const Overlap::Computation& item,
             std::int64_t first) {
  const TileGrid grid = tile.rows > 0 ? make_grid(item.m, item.n, tile.rows, tile.cols, tile.order)
                                      : build.one_tile(item.m, item.n);
  Slice to = build.rows(build.out, rank, first, item.m);
  to.cols = item.n;
  Gemm gemm = build.gemm(rank, grid, RowMap::identity(item.m), Builder::in_place(to));
  gemm.a.rows = item.m;
  gemm.a.cols = gemm.b.rows = item.k;
  gemm.b.cols = item.n;
  // The GEMM yields workers to a collective tile by tile. None are reserved for a collective that does not
  // come.
  gemm.resources = {1, build.workers()};
  return gemm;
}

Collective transfer(const Builder& build, const std::vector<CollectiveConfig>& configs, int rank,
                    std::size_t index, const OverlapRows& rows, bool beside) {
  const auto& [first, count] = rows.collectives[index];
  Collective step;
  step.kind = build.problem().overlap->collectives[index].kind;
  step.send = build.rows(build.payload, rank, 0, rows.sent[index]);
  step.recv = build.rows(build.out, rank, first, count);
  if (step.kind == CollectiveKind::alltoall) {
    step.send_rows.assign(static_cast<std::size_t>(build.world()), count / build.world());
    step.recv_rows = step.send_rows;
  }
  if (!configs.empty()) step.config = configs[index];
  // Without a config NCCL chooses the number of channels. Predictions beside computation assume the
  // machine's.
  const std::int32_t told = step.config.channels;
  step.resources = {told > 0 ? told : build.collective_workers(), told};
  if (beside) step.config.channels = step.resources.least;
  return step;
}

}  // namespace

std::optional<Reason> wrong_configs(const Problem& problem, const Machine& machine,
                                    const std::vector<CollectiveConfig>& configs) {
  if (configs.empty()) return std::nullopt;
  if (!problem.traits().is_workload) return Reason{"configs are for the collectives of an overlap only"};
  const std::size_t collectives = problem.overlap->collectives.size();
  if (configs.size() != collectives)
    return Reason{fmt::format("{} configs for {} collectives", configs.size(), collectives)};
  for (const CollectiveConfig& config : configs)
    if (config.channels < 0 || config.channels >= machine.workers || config.chunk_bytes < 0 ||
        config.threads < 0)
      return Reason{fmt::format("a collective with {} leaves no worker of {} for computation",
                                describe(config), machine.workers)};
  return std::nullopt;
}

void plan_workload(Builder& build, const TileParams& tile, const std::vector<CollectiveConfig>& configs,
                   bool beside) {
  const Overlap& list = *build.problem().overlap;
  const OverlapRows rows = rows_of(build.problem());
  const auto computations = static_cast<std::int64_t>(list.computations.size());
  const auto collectives = static_cast<std::int64_t>(list.collectives.size());
  const std::int32_t computed = build.counter("computed", computations);
  const std::int32_t arrived = build.counter("arrived", collectives);
  const std::vector<Overlap::Item> order = list.order();
  for (int r = 0; r < build.ranks(); ++r) {
    const Overlap::Item* before = nullptr;
    for (const Overlap::Item& item : order) {
      const auto i = static_cast<std::size_t>(item.index);
      const std::int32_t lane = item.communicates ? communicate_lane : compute_lane;
      const std::int32_t awaited = item.communicates ? computed : arrived;
      if (beside) {
        for (const std::int32_t other :
             item.communicates ? list.collectives[i].after : list.computations[i].after)
          build.await(r, lane, awaited, other);
      } else if (before && before->communicates != item.communicates) {
        build.await(r, lane, awaited, before->index);
      }
      if (item.communicates) {
        build.step(r, lane, transfer(build, configs, r, i, rows, beside));
      } else {
        build.step(r, lane, product(build, tile, r, list.computations[i], rows.computations[i].first));
      }
      build.notify(r, lane, item.communicates ? arrived : computed, item.index);
      before = &item;
    }
  }
}

}  // namespace shingle::planner
