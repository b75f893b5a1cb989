// Experts by signal: one product of all tokens and one of all hidden rows. Tiles of the first await the group
// that has their rows. Tiles of the last count, and a group returns when all of its tiles have.
#include "experts.hpp"

#include <limits>
#include <utility>

#include "grid.hpp"
#include "planner/common/expert_chunks.hpp"
#include "planner/common/experts.hpp"
#include "planner/common/routed_rows.hpp"

namespace shingle::planner {
namespace {

/// Waves of a product, on the rank that has most rows.
std::int64_t waves_of(const Problem& p, const Machine& machine, const TileParams& asked) {
  const TileSize tile = tile_size(machine, asked);
  std::int64_t rows = 0;
  for (int r = 0; r < p.world; ++r) rows = larger(rows, p.routing->received(r));
  const std::int64_t tiles = ceil_div(rows, std::int64_t{tile.rows}) * ceil_div(p.n, std::int64_t{tile.cols});
  return larger(ceil_div(tiles, std::int64_t{machine.workers - machine.collective_workers}), 1);
}

void add_rank(Builder& build, const ExpertChunks& groups, ExpertProducts made, int rank, std::int32_t arrived,
              std::int32_t computed, std::int32_t returned) {
  const OperatorTraits& traits = build.problem().traits();
  groups.begin(rank);
  for (std::int64_t group = 0; traits.before && group < groups.chunks(); ++group) {
    groups.send(rank, group);
    build.notify(rank, communicate_lane, arrived, group);
  }
  std::vector<std::uint32_t> tiles(static_cast<std::size_t>(groups.chunks()), 0);  // of the last product
  if (traits.before && !made.gemms.empty())
    await_by_key(made.gemms.front(), made.chunk_of_rows, arrived,
                 std::vector<std::uint32_t>(tiles.size(), 1));
  if (traits.after && !made.gemms.empty())
    tiles = count_by_key(made.gemms.back(), made.chunk_of_rows, computed, groups.chunks());
  for (Gemm& product : made.gemms) build.step(rank, compute_lane, std::move(product));
  groups.finish(rank);
  if (!traits.after) return;
  for (std::int64_t group = 0; group < groups.chunks(); ++group) {
    if (const std::uint32_t target = tiles[static_cast<std::size_t>(group)]; target > 0)
      build.await(rank, communicate_lane, computed, group, target);
    groups.give_back(rank, group);
  }
  hand_over(build, rank, returned, communicate_lane, compute_lane);
  build.step(rank, compute_lane, groups.combine(rank));
}

}  // namespace

Result<Plan> signal_experts(const Problem& problem, const Machine& machine, const SignalParams& params) {
  if (auto reason = unserved_by_signal(problem, machine, params)) return *reason;
  if (auto reason = wrong_groups(params)) return *reason;
  std::int64_t left = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t share : params.group_waves) {
    if (share > left)
      return Reason{"groups of experts are shares, which add up to more than 2^31; give smaller numbers"};
    left -= share;
  }
  SignalParams chosen = params;
  chosen.equal_groups = false;
  if (problem.traits().replicates_tokens())
    return signal_replicated_tokens(problem, machine, std::move(chosen));
  if (problem.traits().slices_experts()) return signal_sliced_experts(problem, machine, std::move(chosen));
  if (chosen.group_waves.empty())
    chosen.group_waves = default_partition(waves_of(problem, machine, params.tile));
  ParamBuilder<SignalParams> build(problem, machine, chosen);
  const OperatorTraits& traits = problem.traits();
  const auto groups = expert_chunks(build, machine, params.tile, chosen.group_waves);
  const std::int32_t hidden =
      traits.chains() ? build.buffer("hidden", RoutedRows(*problem.routing).received, problem.inner) : -1;
  const std::int32_t arrived = traits.before ? build.counter("arrived", groups->chunks()) : -1;
  const std::int32_t computed = traits.after ? build.counter("computed", groups->chunks()) : -1;
  const std::int32_t returned = traits.after ? build.counter("returned", 1) : -1;
  for (int r = 0; r < problem.world; ++r)
    add_rank(build, *groups,
             expert_products(build, *groups, machine, params.tile, r, 0, groups->chunks(), hidden), r,
             arrived, computed, returned);
  return std::move(build).finish(rounding(problem));
}

}  // namespace shingle::planner
