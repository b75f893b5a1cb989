// The params of `signal`.
#include "planner/common/param_table.hpp"

namespace shingle {
namespace planner {

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
      {}};
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
    return joined(std::move(tiles), {comm_workers_row<P>(), groups_row(), symmetric_row<P>()});
  }();
  return table;
}

}  // namespace shingle
