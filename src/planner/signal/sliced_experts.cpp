// Tensor-parallel experts by signal: one product of all tokens and one of all hidden rows. Tokens of other
// ranks arrive in groups, and helpers sort them beside the first product, whose tiles await the group that
// has their rows. Tiles of the last product are counted. Helpers sum the choices of a token when its tiles
// are there, and the sums of a group return when it is complete.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "experts.hpp"
#include "planner/common/helpers.hpp"
#include "planner/common/sliced_chunks.hpp"

namespace shingle::planner {
namespace {

class SlicedSignals {
 public:
  SlicedSignals(Builder& build, const SlicedChunks& groups, std::int32_t helpers)
      : build_(build), groups_(groups), helpers_(larger(helpers, 0)) {
    const OperatorTraits& traits = build.problem().traits();
    if (traits.before && helpers_ > 0) sorted_ = build.counter("sorted", groups.chunks());
    if (traits.after) computed_ = build.counter("computed", groups.chunks());
  }

  /// Gathers tokens and weights. Sorts tokens as they arrive, and multiplies them: beside each other, or with
  /// no helpers one after the other.
  void take(int rank) const {
    groups_.begin(rank);
    if (!build_.problem().traits().before) return groups_.gather(rank);
    const int groups = groups_.chunks();
    std::vector<std::vector<Elementwise>> arriving(static_cast<std::size_t>(groups));  // by group
    std::vector<std::uint32_t> sorted(static_cast<std::size_t>(groups), 0);            // tiles of these
    for (int group = 0; group < groups; ++group)
      for (const SlicedChunks::Piece& piece : groups_.pieces(rank, group))
        for (Elementwise& pass : groups_.sort(rank, piece)) {
          if (piece.source == rank) {
            add(rank, compute_lane, std::move(pass));
            continue;
          }
          if (helpers_ > 0) pass.notify.push_back({sorted_, {rank}, {pass.grid.positions()}, {group}});
          sorted[static_cast<std::size_t>(group)] += static_cast<std::uint32_t>(pass.grid.tiles());
          arriving[static_cast<std::size_t>(group)].push_back(std::move(pass));
        }
    TurnProduct product = groups_.first_product(rank, 0, groups);
    if (helpers_ > 0) await_by_key(product.gemm, product.turns, sorted_, sorted);
    const auto multiply = [&] {
      if (!product.turns.empty()) add(rank, compute_lane, std::move(product.gemm));
    };
    // The host launches steps in this order: the product first, as it starts before tokens arrive.
    if (helpers_ > 0) multiply();
    groups_.gather(rank);
    for (int group = 0; group < groups; ++group) {
      if (groups_.travels(group)) build_.await(rank, helper_lane(rank), groups_.arrived, group);
      for (Elementwise& pass : arriving[static_cast<std::size_t>(group)])
        add(rank, helper_lane(rank), std::move(pass));
    }
    if (helpers_ == 0) multiply();
    groups_.return_counts(rank);
  }

  /// Multiplies hidden rows, sums the choices of all tokens group by group, and returns the sums.
  void give(int rank) const {
    if (groups_.slots_with_weights()) build_.await(rank, compute_lane, groups_.weights_arrived, 0);
    TurnProduct product = groups_.last_product(rank, 0, groups_.chunks());
    const std::vector<std::uint32_t> computed =
        count_by_key(product.gemm, product.turns, computed_, groups_.chunks());
    if (!product.turns.empty()) add(rank, compute_lane, product.gemm);
    std::int32_t queue = 0;
    for (int group = groups_.chunks() - 1; group >= 0; --group) {
      std::uint32_t combined = 0;  // tiles of passes
      for (const SlicedChunks::Piece& piece : groups_.pieces(rank, group)) {
        Elementwise pass = groups_.combine(rank, piece);
        const std::vector<std::int64_t> all{pass.grid.positions()};
        for (const std::int32_t turn : turns_of(product, groups_.rows_of(piece)))
          pass.gates.push_back({computed_, all, {computed[static_cast<std::size_t>(turn)]}, {turn}});
        if (piece.source != rank) pass.gates.push_back({groups_.weights_arrived, all, {1}, {0}});
        pass.notify.push_back({groups_.combined, {rank}, all, {group}});
        pass.queue = queue++;
        combined += static_cast<std::uint32_t>(pass.grid.tiles());
        share(build_, rank, std::move(pass), helper_lane(rank), helpers_, rest());
      }
      if (combined > 0)
        build_.await(rank, groups_.travels(group) ? communicate_lane : compute_lane, groups_.combined, group,
                     combined);
      if (groups_.travels(group)) groups_.give_back(rank, group);
    }
    groups_.sum(rank);
  }

 private:
  /// Workers that neither collectives nor helpers take.
  std::int32_t rest() const { return build_.beside_communication().most - helpers_; }
  std::int32_t helper_lane(int rank) const {
    if (helpers_ == 0) return compute_lane;
    return build_.helper_lane(rank, build_.problem().traits().before ? "sort" : "combine");
  }
  template <class Pass>
  void add(int rank, std::int32_t lane, Pass pass) const {
    pass.resources = {1, lane == compute_lane ? rest() : helpers_};
    build_.step(rank, lane, std::move(pass));
  }

  Builder& build_;
  const SlicedChunks& groups_;
  const std::int32_t helpers_;
  std::int32_t sorted_ = -1, computed_ = -1;  // counters, by group
};

/// Helpers, or none where all workers should sort before the product: few rows would occupy many helpers.
std::int32_t default_helpers(const Problem& problem, const Machine& machine, const TileParams& tile,
                             std::int32_t most) {
  const std::int32_t helpers = smaller(helpers_of_experts(problem, machine, tile, 0), most);
  const bool many = helpers >= helpers_of(machine, 0, 4) && sorts_before_product(problem, machine, tile);
  return many || helpers == 0 || problem.world == 1 ? FusedParams::no_helpers : helpers;
}

/// Own tokens, then those of the others rank by rank. A rank's tokens are cut, but not into messages that
/// take mostly their latency. Without helpers all others are one group, because nothing overlaps with its
/// message.
std::vector<std::int64_t> default_groups(const Problem& problem, const Machine& machine,
                                         std::int32_t helpers) {
  constexpr double most = 8;        // groups of a rank's tokens
  constexpr double latencies = 12;  // of a message, at least; from predictions for H200 and A800
  const std::int64_t others = problem.world - 1;
  if (others == 0) return {1};
  if (helpers <= 0) return {1, others};
  const std::int64_t cols = problem.traits().before ? problem.k : problem.n;
  const double us = machine.link.transfer_us(static_cast<double>(problem.m * cols) *
                                             static_cast<double>(size_bytes(problem.dtype)));
  const double cut = std::clamp(us / (latencies * std::max(machine.link.latency_us, 1.0)), 1.0, most);
  return groups_by_rank(problem.world, static_cast<std::int64_t>(cut));
}

}  // namespace

std::vector<std::int64_t> groups_by_rank(int world, std::int64_t cut) {
  std::vector<std::int64_t> shares{cut};
  shares.resize(static_cast<std::size_t>(1 + (world - 1) * cut), 1);
  return shares;
}

/// Shares of whole ranks, which these are about. Shares of less than a rank are joined.
std::vector<std::int64_t> in_whole_ranks(int world, const std::vector<std::int64_t>& shares) {
  const std::int64_t all = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  std::vector<std::int64_t> ranks;
  std::int64_t shared = 0, taken = 0;
  for (const std::int64_t share : shares) {
    shared += share;
    if (const std::int64_t some = world * shared / all - taken; some > 0) ranks.push_back(some);
    taken = world * shared / all;
  }
  return ranks;
}

Result<Plan> signal_sliced_experts(const Problem& problem, const Machine& machine, SignalParams params) {
  if (params.group_waves.size() > most_groups_of_slices)
    return Reason{fmt::format("{} groups of tensor-parallel experts are more than {}",
                              params.group_waves.size(), most_groups_of_slices)};
  const std::int32_t workers = machine.workers - machine.collective_workers;
  if (auto reason = wrong_helpers(params.helpers, workers)) return *reason;
  if (params.helpers == 0) params.helpers = default_helpers(problem, machine, params.tile, workers - 1);
  if (params.group_waves.empty()) params.group_waves = default_groups(problem, machine, params.helpers);
  if (problem.has_slots()) params.group_waves = in_whole_ranks(problem.world, params.group_waves);
  ParamBuilder<SignalParams> build(problem, machine, params);
  const SlicedChunks groups(build, machine, params.tile, params.group_waves);
  const SlicedSignals signals(build, groups, params.helpers);
  for (int r = 0; r < problem.world; ++r) {
    signals.take(r);
    if (problem.traits().after) signals.give(r);
  }
  return std::move(build).finish(problem.traits().after ? Rounding{Summing::rank_order, problem.dtype}
                                                        : rounding(problem));
}

}  // namespace shingle::planner
