#include "waves.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lower/launch_rules.hpp"
#include "machine/shared_wave.hpp"
#include "planner/common/pools.hpp"
#include "planner/signal/grid.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

using planner::SignalGrid;

Traffic traffic_of(Op op) {
  if (op == Op::gemm_allreduce) return Traffic::allreduce;
  return op == Op::gemm_reducescatter ? Traffic::reducescatter : Traffic::alltoall;
}

/// Bytes of a row of a staging buffer. It is a whole tile wide, including padding.
double row_bytes(const SignalGrid& tiles, const Problem& problem) {
  return static_cast<double>(tiles.grid.tile_cols) * static_cast<double>(size_bytes(problem.dtype));
}

/// Position at which each wave ends.
std::vector<std::int64_t> wave_ends(const SignalGrid& tiles) {
  std::vector<std::int64_t> ends;
  for (std::int64_t w = 1; w <= tiles.waves(); ++w)
    ends.push_back(smaller(w * tiles.workers, tiles.grid.positions()));
  return ends;
}

std::vector<std::vector<double>> equal_bytes(const SignalGrid& tiles, const Problem& problem) {
  std::vector<double> bytes{0};
  for (const std::int64_t end : wave_ends(tiles))
    bytes.push_back(static_cast<double>(tiles.grid.rows_before(end)) * row_bytes(tiles, problem));
  return {bytes};
}

/// Excludes what a rank keeps, which crosses no link. Scaled to the curve's bytes: of n equal parts that a
/// rank sends, n - 1 leave it.
std::vector<std::vector<double>> routed_bytes(const SignalGrid& tiles, const Problem& problem) {
  const int world = problem.world;
  std::vector<std::vector<std::int64_t>> ends(static_cast<std::size_t>(world));
  for (int r = 0; r < world; ++r)
    for (const std::int64_t end : wave_ends(tiles))
      ends[static_cast<std::size_t>(r)].push_back(tiles.end_on(r, end));
  const planner::Pools pools(*problem.routing, tiles.ranks, ends);
  const double scale = row_bytes(tiles, problem) * world / std::max(world - 1, 1);
  std::vector<std::vector<double>> bytes(2 * static_cast<std::size_t>(world), {0});
  for (std::int64_t w = 0; w < pools.groups(); ++w)
    for (int r = 0; r < world; ++r) {
      const auto leave = [&](const std::vector<std::int64_t>& rows) {
        std::int64_t sum = -rows[static_cast<std::size_t>(r)];
        for (const std::int64_t of_peer : rows) sum += of_peer;
        return static_cast<double>(sum) * scale;
      };
      auto& out = bytes[2 * static_cast<std::size_t>(r)];
      auto& in = bytes[2 * static_cast<std::size_t>(r) + 1];
      out.push_back(out.back() + leave(pools.sent(r, w)));
      in.push_back(in.back() + leave(pools.received(r, w)));
    }
  return bytes;
}

/// Time of a tile of a product that takes `us` beside collectives, relative to its time alone (as in the
/// simulator).
double slowed_by_traffic(const WaveModel& model, const MovedBytes& moved, double us) {
  const Machine& machine = model.machine;
  const Contention& contention = machine.contention;
  return Contention::slowed(contention.share(ComputationKind::product, moved, us, machine.memory_gbps),
                            contention.traffic_gbps(model.workers, 0), machine.memory_gbps) *
         (1 + contention.slowed_by(model.traffic));
}

/// Time of a last wave that is not full, relative to a full one: workers may share its tiles.
double last_wave(const Machine& machine, const SignalGrid& tiles, const Problem& problem) {
  const TileGrid& grid = tiles.grid;
  const bool gated = problem.epilogue.activation == Activation::swiglu;
  const std::int64_t cluster = tiles_of_cluster(grid);
  const auto k = static_cast<double>(problem.k);
  const SharedTiles shared = shared_tiles(
      machine, k_split(grid.tile_rows, gated ? 2 * grid.tile_cols : grid.tile_cols),
      ceil_div(grid.tiles_before(grid.positions()), cluster), k, larger(tiles.workers / cluster, 1));
  return wave_us(machine, grid.tile_rows, grid.tile_cols, k, shared) /
         wave_us(machine, grid.tile_rows, grid.tile_cols, k);
}

/// Sets the end of each wave: the time when its last tile with output is computed. Times are the max. over
/// ranks, so the rank with the most rows counts. Waves after the first run beside collectives, for as long as
/// these take. `last`: as by last_wave().
void compute(WaveModel& model, const SignalGrid& tiles, double wave_us, double last,
             const MovedBytes& moved) {
  const TileGrid& grid = tiles.grid;
  const std::int64_t all = grid.tiles_before(grid.positions());
  const auto waves = [&](std::int64_t end) {
    const std::int64_t before = grid.tiles_before(end);
    const auto begun = static_cast<double>(larger(ceil_div(before, tiles.workers), std::int64_t{1}));
    return before == all && all % tiles.workers != 0 ? begun - 1 + last : begun;
  };
  const double all_us = waves(grid.positions()) * wave_us;
  const double sending_us = tiles.waves() > 0 ? model.send_us(0, tiles.waves()) : 0;
  const double slower =
      1 + (slowed_by_traffic(model, moved, all_us) - 1) * std::min(sending_us / std::max(all_us, 1e-9), 1.0);
  const double begins_us = model.machine.launch_us + model.machine.hooked_us;
  model.computed_us = {begins_us};
  for (const std::int64_t end : wave_ends(tiles))
    model.computed_us.push_back(
        begins_us + wave_us * (std::min(waves(end), 1.0) + std::max(waves(end) - 1, 0.0) * slower));
}

/// Sets the time to restore order: a rank's own rows, read and written.
void restore(WaveModel& model, const Machine& machine, const Problem& problem) {
  if (machine.sync_us == 0 || problem.norm.enabled || problem.epilogue.activation == Activation::swiglu)
    return;
  const double received = problem.op == Op::gemm_allreduce ? 1 : 1.0 / problem.world;
  model.restore_us = machine.launch_us;
  for (std::size_t w = 0; w < model.computed_us.size(); ++w) {
    double most = 0;
    for (const std::vector<double>& link : model.bytes) most = std::max(most, link[w]);
    model.restored_us.push_back(machine.memory_gbps > 0 ? 2 * received * most / (machine.memory_gbps * 1e3)
                                                        : 0);
  }
}

Result<WaveModel> model_of(const SignalGrid& tiles, const Problem& problem, const Machine& machine,
                           std::int32_t collective_workers) {
  WaveModel model{.traffic = traffic_of(problem.op), .ranks = problem.world, .workers = collective_workers};
  model.machine = machine;
  const bool curve =
      std::ranges::any_of(machine.curves, [&](const Curve& known) { return known.traffic == model.traffic; });
  if (!curve && machine.link.gbps == 0)
    return Reason{
        fmt::format("machine '{}' has neither a curve of {} nor a link", machine.name, name(model.traffic))};
  const bool picks = problem.op == Op::gemm_reducescatter && problem.row_order != RowOrder::block_cyclic;
  const double wave =
      wave_us(machine, tiles.grid.tile_rows, tiles.grid.tile_cols, static_cast<double>(problem.k)) /
      (picks && tiles.workers < machine.workers ? machine.picking_rate : 1);
  if (wave < 0) return Reason{fmt::format("machine '{}' has no tile times", machine.name)};
  model.signal_us = machine.signal_us;
  model.sync_us = machine.sync_us;
  model.latency_us = machine.lone_latency_of(true) *
                     collective_us(machine, model.traffic, problem.world, collective_workers, 0);
  model.bytes = tiles.ranks.empty() ? equal_bytes(tiles, problem) : routed_bytes(tiles, problem);
  const TileGrid& grid = tiles.grid;
  compute(model, tiles, wave, last_wave(machine, tiles, problem),
          product_moves({grid.rows, grid.cols, problem.k, grid.tile_rows, grid.tile_cols},
                        static_cast<double>(size_bytes(problem.dtype))));
  return model;
}

}  // namespace

double WaveModel::send_us(std::int64_t first, std::int64_t end) const {
  double most = 0;
  for (const std::vector<double>& link : bytes)
    most = std::max(most, link[static_cast<std::size_t>(end)] - link[static_cast<std::size_t>(first)]);
  return latency_us + collective_us(machine, traffic, ranks, workers, most);
}

Result<WaveModel> wave_model(const Problem& problem, const Machine& machine, const SignalParams& params) {
  const auto tiles = planner::signal_grid(problem, machine, params);
  if (!tiles) return Reason{tiles.reason()};
  auto model = model_of(tiles.value(), problem, machine, tiles->collective_workers);
  if (!model) return model;
  model->slowdown = machine.contention.collective_slowdown;
  restore(*model, machine, problem);
  return model;
}

Result<WaveModel> lone_wave_model(const Problem& problem, const Machine& machine,
                                  const SignalParams& params) {
  auto tiles = planner::signal_grid(problem, machine, params);
  if (!tiles) return Reason{tiles.reason()};
  tiles->workers = machine.workers;
  Machine of_library = machine;
  of_library.hooked_us = 0;
  of_library.contention.product_slowdown = {};
  return model_of(tiles.value(), problem, of_library, 0);
}

Machine under(Machine machine, const Conditions& conditions) {
  const std::int32_t workers = conditions.workers > 0 ? conditions.workers : machine.workers;
  const std::int32_t taken =
      conditions.collective_workers >= 0 ? conditions.collective_workers : machine.collective_workers;
  if (conditions.workers < 0 || workers > machine.workers || taken >= workers)
    throw InvalidArgument(fmt::format(
        "{} workers, of them {} for collectives: expected fewer for collectives, and at most {} in all",
        workers, taken, machine.workers));
  if (!(conditions.slowdown > 0))
    throw InvalidArgument(fmt::format("slowdown = {} must be above 0", conditions.slowdown));
  machine.workers = workers;
  machine.collective_workers = taken;
  for (TileRate& tile : machine.tiles) {
    tile.fixed_us *= conditions.slowdown;
    tile.us_per_k *= conditions.slowdown;
  }
  return machine;
}

}  // namespace shingle
