// The params of `signal`.
#include "experts.hpp"
#include "planner/common/param_table.hpp"

namespace shingle {
namespace planner {

/// Tensor-parallel experts: all other ranks' tokens together, or each rank's in some groups; with slots in
/// one. Of tokens that all ranks have, equal parts of the columns.
static std::vector<SignalParams> sliced_groups_to_try(const Tuning<SignalParams>& tuning) {
  std::vector<SignalParams> all;
  const int world = tuning.problem.world;
  if (!tuning.problem.traits().slices_experts() || world == 1) return all;
  const auto with = [&](std::vector<std::int64_t> shares) {
    all.push_back(tuning.at);
    all.back().group_waves = std::move(shares);
  };
  if (tuning.problem.traits().replicates_tokens()) {
    for (const std::size_t strips : {1, 2, 4, 8}) with(std::vector<std::int64_t>(strips, 1));
    return all;
  }
  with({1, world - 1});
  for (const std::int64_t cut : {1, 2, 4, 8})
    if (cut == 1 || !tuning.problem.has_slots()) with(groups_by_rank(world, cut));
  return all;
}

static std::vector<std::int32_t> sliced_helpers_to_try(const Tuning<SignalParams>& tuning) {
  return tuning.problem.traits().slices_experts() ? helpers_to_try(tuning) : std::vector<std::int32_t>{};
}

/// The groups of waves. The tuner searches them with its own model of waves (tune/searched.hpp).
static ParamRow<SignalParams> groups_row() {
  return {
      {.name = "groups",
       .type = "LIST",
       .help = "Waves of tiles in each group, such as 1,2,4, or equal (default: searched with the machine's "
               "profile; equal without one)"},
      [](const SignalParams& params) -> std::optional<std::string> {
        if (params.equal_groups) return "equal";
        if (params.group_waves.empty()) return std::nullopt;
        return text(params.group_waves);
      },
      [](SignalParams& params, const std::string& value) {
        params.group_waves.clear();
        params.equal_groups = value == "equal";
        if (!params.equal_groups) parse(params.group_waves, value);
      },
      sliced_groups_to_try};
}

}  // namespace planner

const planner::ParamTable<SignalParams>& SignalParams::table() {
  using namespace planner;
  using P = SignalParams;
  static const ParamTable<P> table = [] {
    ParamTable<P> tiles = tuned_tile_rows<P>();
    tiles.front().tried = [found = tiles.front().tried](const Tuning<P>& tuning) {
      std::vector<P> all = found(tuning);
      for (P& params : all) params.group_waves.clear();  // another tile has other waves
      return all;
    };
    return joined(std::move(tiles), {comm_workers_row<P>(), groups_row(),
                                     helpers_row<P>(sliced_helpers_to_try), symmetric_row<P>()});
  }();
  return table;
}

}  // namespace shingle
