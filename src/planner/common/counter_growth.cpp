#include "counter_growth.hpp"

#include <algorithm>
#include <set>

namespace shingle::planner {
namespace {

/// Adds the growth in one epoch from a tiled step that does positions [first, last).
void add_growth(Plan& plan, const TileGrid& grid, const std::vector<TileNotify>& notifies, std::int64_t first,
                std::int64_t last) {
  for (const TileNotify& notify : notifies) {
    std::int64_t before = grid.tiles_before(first);
    for (std::size_t g = 0; g < notify.ends.size(); ++g) {
      const std::int64_t tiles = grid.tiles_before(larger(first, smaller(notify.ends[g], last)));
      const auto group = static_cast<std::int64_t>(g);
      notify.for_each_rank(group, [&](std::int32_t rank) {
        plan.counters[notify.counter].growth[rank][notify.entry(group)] +=
            static_cast<std::uint32_t>(tiles - before);
      });
      before = tiles;
    }
  }
}

void add_growth(Plan& plan, const Step& step) {
  const auto all_of = [&](const auto& tiled) {
    add_growth(plan, tiled.grid, tiled.notify, 0, tiled.grid.positions());
  };
  if (const auto* gemm = std::get_if<Gemm>(&step)) all_of(*gemm);
  if (const auto* attend = std::get_if<Attend>(&step)) all_of(*attend);
  if (const auto* pass = std::get_if<Elementwise>(&step))
    add_growth(plan, pass->grid, pass->notify, pass->first, last_item(*pass));
  if (const auto* notify = std::get_if<Notify>(&step)) {
    const CounterRef& at = notify->counter;
    Counter& counter = plan.counters[at.counter];
    std::uint32_t& growth = counter.growth[at.rank][at.entry];
    growth = counter.kind == CounterKind::add ? growth + notify->value : std::max(growth, notify->value);
  }
}

}  // namespace

void grow_counters(Plan& plan, const RankPlan& rank) {
  std::set<std::int32_t> queues;  // a shared pass notifies once, in whichever lane
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps) {
      const auto* pass = std::get_if<Elementwise>(&step);
      if (!pass || pass->queue < 0 || queues.insert(pass->queue).second) add_growth(plan, step);
    }
}

}  // namespace shingle::planner
