// Tensor-parallel experts of tokens that all ranks have, by signal: the last product is computed in strips of
// columns, whose tiles are counted. Helpers sum the choices of all tokens for the columns of a strip, and an
// all-reduce adds these sums while the next strip is multiplied.
#include "planner/common/replicated_tokens.hpp"

#include <fmt/format.h>

#include <utility>

#include "experts.hpp"
#include "planner/common/helpers.hpp"

namespace shingle::planner {
namespace {

using Strip = ReplicatedTokens::Strip;

class ReplicatedSignals {
 public:
  ReplicatedSignals(Builder& build, const Machine& machine, const SignalParams& params)
      : build_(build),
        helpers_(larger(params.helpers, 0)),
        rest_(helpers_ == 0 && params.group_waves.size() == 1 ? workers_beside_waits(build)
                                                              : build.beside_communication().most - helpers_),
        shares_(params.group_waves),
        tokens_(build, machine, params.tile, rest_) {
    const Problem& p = build.problem();
    // All ranks have the same strips. A collective takes whole rows, so each strip has a buffer.
    for (const Strip& strip : tokens_.product(0, shares_).strips)
      sums_.push_back(build.buffer(fmt::format("sums {}", sums_.size()), p.m, strip.cols));
    const std::int64_t strips = std::ssize(sums_);
    if (helpers_ > 0) computed_ = build.counter("computed", strips);
    combined_ = build.counter("combined", strips);
    summed_ = build.counter("summed", strips);
  }

  void add_rank(int rank) const {
    tokens_.take(rank);
    ReplicatedTokens::Product product = tokens_.product(rank, shares_);
    std::vector<std::uint32_t> computed;
    if (helpers_ > 0) computed = ReplicatedTokens::count_by_strip(product, computed_);
    build_.step(rank, compute_lane, std::move(product.gemm));
    const auto strips = static_cast<std::int32_t>(product.strips.size());
    for (std::int32_t i = 0; i < strips; ++i) {
      const auto strip = static_cast<std::size_t>(i);
      const Strip& columns = product.strips[strip];
      Elementwise pass = tokens_.combine(rank, columns, build_.row_blocks(build_.problem().m, columns.cols));
      const std::vector<std::int64_t> all{pass.grid.positions()};
      const auto tiles = static_cast<std::uint32_t>(pass.grid.tiles());
      pass.to = Builder::in_place(build_.all(sums_[strip], rank));
      if (helpers_ > 0) pass.gates.push_back({computed_, all, {computed[strip]}, {i}});
      pass.notify.push_back({combined_, {rank}, all, {i}});
      if (helpers_ > 0) pass.queue = i;
      share(build_, rank, std::move(pass), helpers_ > 0 ? build_.helper_lane(rank, "combine") : compute_lane,
            helpers_, rest_);
      build_.await(rank, communicate_lane, combined_, i, tiles);
      const Slice sums = build_.all(sums_[strip], rank);
      build_.collective(rank, CollectiveKind::allreduce, sums, sums);
      build_.notify(rank, communicate_lane, summed_, i);
    }
    for (std::int32_t i = 0; i < strips; ++i) {
      const auto strip = static_cast<std::size_t>(i);
      build_.await(rank, compute_lane, summed_, i);
      build_.step(rank, compute_lane,
                  build_.copy(build_.all(sums_[strip], rank),
                              columns_of(build_.all(build_.out, rank), product.strips[strip])));
    }
  }

 private:
  Builder& build_;
  const std::int32_t helpers_;
  /// Workers that neither collectives nor helpers take while the last product runs.
  const std::int32_t rest_;
  const std::vector<std::int64_t>& shares_;
  const ReplicatedTokens tokens_;
  std::vector<std::int32_t> sums_;                            // buffers, by strip
  std::int32_t computed_ = -1, combined_ = -1, summed_ = -1;  // counters, by strip
};

}  // namespace

Result<Plan> signal_replicated_tokens(const Problem& problem, const Machine& machine, SignalParams params) {
  if (params.group_waves.size() > most_groups_of_slices)
    return Reason{fmt::format("{} groups of tensor-parallel experts are more than {}",
                              params.group_waves.size(), most_groups_of_slices)};
  const std::int32_t workers = machine.workers - machine.collective_workers;
  if (auto reason = wrong_helpers(params.helpers, workers)) return *reason;
  params.helpers = smaller(helpers_of_strips(problem, machine, params.tile, params.helpers), workers - 1);
  if (params.helpers == 0 || problem.world == 1) params.helpers = FusedParams::no_helpers;
  if (params.group_waves.empty())  // without helpers nothing is beside the product
    params.group_waves.assign(
        params.helpers > 0 ? static_cast<std::size_t>(strips_of(problem, machine, params.tile)) : 1, 1);
  ParamBuilder<SignalParams> build(problem, machine, params);
  if (problem.m > 0) {
    const ReplicatedSignals signals(build, machine, build.params());
    for (int r = 0; r < problem.world; ++r) signals.add_rank(r);
  }
  return std::move(build).finish(rounding(problem));
}

}  // namespace shingle::planner
