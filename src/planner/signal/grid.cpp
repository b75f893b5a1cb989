#include "grid.hpp"

#include <fmt/format.h>

#include <optional>

#include "planner/common/builder.hpp"

namespace shingle::planner {

std::optional<Reason> unserved_by_signal(const Problem& problem, const Machine& machine,
                                         const SignalParams& params) {
  problem.validate();
  if (auto reason = infeasible(problem, machine, params)) return reason;
  if (auto reason = nothing_to_overlap(problem)) return reason;
  if (problem.traits().attends) return Reason{"signal does not plan attention: use ring"};
  if (params.helpers != 0 && params.helpers != FusedParams::no_helpers && !problem.traits().slices_experts())
    return Reason{
        fmt::format("helpers of signal sort and sum tokens of tensor-parallel experts, which {} does "
                    "not have: leave them out",
                    name(problem.op))};
  if (problem.op == Op::mlp)
    return Reason{
        "signal sends the output of a GEMM, but mlp communicates before its first GEMM: use ring or fused"};
  if (problem.op == Op::gemm_allgather_gemm)
    return Reason{"signal does not plan an all-gather between two GEMMs: use chunked or copy-engine"};
  if (problem.traits().gathers() && !problem.traits().grouped)
    return Reason{
        fmt::format("signal sends the output of a GEMM, but {} communicates before its GEMM: use {}",
                    name(problem.op), problem.traits().routes() ? "fused" : "chunked, ring or fused")};
  return std::nullopt;
}

std::vector<std::int64_t> default_partition(std::int64_t waves) {
  constexpr std::int64_t default_groups = 12;
  const std::int64_t groups = smaller(waves, default_groups);
  if (groups <= 1) return {waves};
  const std::int64_t last = larger(waves / (2 * groups), 1);
  std::vector<std::int64_t> sizes;
  for (std::int64_t g = 0; g + 1 < groups; ++g)
    sizes.push_back((waves - last) * (g + 1) / (groups - 1) - (waves - last) * g / (groups - 1));
  sizes.push_back(last);
  return sizes;
}

std::optional<Reason> wrong_groups(const SignalParams& params) {
  if (params.equal_groups && !params.group_waves.empty())
    return Reason{"group_waves and equal_groups are both set; set one of them"};
  if (params.group_waves.size() > max_slices)
    return Reason{fmt::format("{} groups are more than {}", params.group_waves.size(), max_slices)};
  for (const std::int64_t waves : params.group_waves)
    if (waves < 1) return Reason{fmt::format("a group has {} waves; it needs at least 1", waves)};
  return std::nullopt;
}

Result<SignalGrid> signal_grid(const Problem& problem, const Machine& host, const SignalParams& params) {
  const Machine machine = with_comm_workers(host, params.comm_workers);
  if (auto reason = unserved_by_signal(problem, machine, params)) return *reason;
  if (problem.traits().grouped) return Reason{"tiles of a grouped product are no one grid of all ranks"};
  const std::int64_t cols = problem.traits().reduces() ? problem.n : problem.out_cols();
  auto [tile_rows, tile_cols] = tile_size(machine, params.tile).within(problem.m, cols);
  std::int64_t rows = problem.m;
  if (problem.op == Op::gemm_reducescatter) {
    const bool dealt = problem.row_order == RowOrder::block_cyclic;
    const std::int64_t block =
        dealt ? problem.row_block : smaller(larger(tile_rows / problem.world, 1), problem.shard_rows());
    if (block * problem.world > std::int64_t{1} << 30)
      return Reason{
          fmt::format("row blocks of {} rows make tiles that are too tall; take smaller blocks", block)};
    tile_rows = static_cast<std::int32_t>(block * problem.world);
    rows = problem.world * problem.shard_rows();
  }
  const TileOrder order = params.tile.order == TileOrder{} ? machine.order : params.tile.order;
  const auto grid_of = [&](std::int64_t r) { return make_grid(r, cols, tile_rows, tile_cols, order); };
  SignalGrid tiles{
      grid_of(rows), {}, machine.workers - machine.collective_workers, machine.collective_workers, order};
  if (tiles.grid.positions() > std::int64_t{1} << 31)
    return Reason{fmt::format("tiles of {}x{} are too small: {} of them", tile_rows, tile_cols,
                              tiles.grid.positions())};
  if (problem.op == Op::gemm_alltoall)
    for (int r = 0; r < problem.world; ++r) tiles.ranks.push_back(grid_of(problem.routing->rows(r)));
  return tiles;
}

}  // namespace shingle::planner
