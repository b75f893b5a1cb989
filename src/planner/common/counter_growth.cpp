#include "counter_growth.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "plan/steps.hpp"

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
  if (const auto* merge = std::get_if<Merge>(&step)) all_of(*merge);
  if (const auto* back = std::get_if<AttendBackward>(&step)) all_of(*back);
  if (const auto* pass = std::get_if<Elementwise>(&step))
    add_growth(plan, pass->grid, pass->notify, pass->first, last_item(*pass));
  if (const auto* notify = std::get_if<Notify>(&step)) {
    const CounterRef& at = notify->counter;
    Counter& counter = plan.counters[at.counter];
    std::uint32_t& growth = counter.growth[at.rank][at.entry];
    growth = counter.kind == CounterKind::add ? growth + notify->value : std::max(growth, notify->value);
  }
}

using Count = std::array<std::int32_t, 3>;  // counter, rank, entry

/// Counts to which the steps of a rank add on other ranks.
void note_adds(std::set<Count>& counts, std::int32_t rank, const Step& step) {
  if (const auto* notify = std::get_if<Notify>(&step); notify && notify->counter.rank != rank)
    counts.insert({notify->counter.counter, notify->counter.rank, notify->counter.entry});
  if (const auto* notifies = notifies_of(step))
    for (const TileNotify& notify : *notifies)
      for (std::size_t g = 0; g < notify.ends.size(); ++g) {
        const auto group = static_cast<std::int64_t>(g);
        notify.for_each_rank(group, [&](std::int32_t to) {
          if (to != rank) counts.insert({notify.counter, to, notify.entry(group)});
        });
      }
}

/// The largest target of each count that the step awaits on its own rank. Gates without tiles await nothing.
void note_awaits(std::map<Count, std::uint32_t>& awaited, std::int32_t rank, const Step& step) {
  const auto note = [&](std::int32_t counter, std::int32_t entry, std::uint32_t target) {
    std::uint32_t& most = awaited[{counter, rank, entry}];
    most = std::max(most, target);
  };
  if (const auto* await = std::get_if<Await>(&step); await && await->counter.rank == rank)
    note(await->counter.counter, await->counter.entry, await->target);
  const auto gates = [&](const auto& tiled, std::int64_t first, std::int64_t last) {
    for (const TileGate& gate : tiled.gates) {
      std::int64_t begin = 0;
      for (std::size_t g = 0; g < gate.ends.size(); ++g) {
        const std::int64_t from = larger(first, begin), to = smaller(last, gate.ends[g]);
        begin = gate.ends[g];
        if (from < to && tiled.grid.tiles_before(to) > tiled.grid.tiles_before(from))
          note(gate.counter, gate.entry(static_cast<std::int64_t>(g)), gate.targets[g]);
      }
    }
  };
  if (const auto* gemm = std::get_if<Gemm>(&step)) gates(*gemm, 0, gemm->grid.positions());
  if (const auto* attend = std::get_if<Attend>(&step)) gates(*attend, 0, attend->grid.positions());
  if (const auto* merge = std::get_if<Merge>(&step)) gates(*merge, 0, merge->grid.positions());
  if (const auto* back = std::get_if<AttendBackward>(&step)) gates(*back, 0, back->grid.positions());
  if (const auto* pass = std::get_if<Elementwise>(&step)) gates(*pass, pass->first, last_item(*pass));
}

}  // namespace

void await_remaining_adds(Plan& plan) {
  std::set<Count> added;
  std::map<Count, std::uint32_t> awaited;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Lane& lane : plan.ranks[r].lanes)
      for (const Step& step : lane.steps) {
        note_adds(added, static_cast<std::int32_t>(r), step);
        note_awaits(awaited, static_cast<std::int32_t>(r), step);
      }
  for (const Count& count : added) {
    const auto [counter, rank, entry] = count;
    const Counter& of = plan.counters[static_cast<std::size_t>(counter)];
    const std::uint32_t growth = of.growth[static_cast<std::size_t>(rank)][static_cast<std::size_t>(entry)];
    if (of.of_begins || growth == 0 || awaited[count] >= growth) continue;
    RankPlan& to = plan.ranks[static_cast<std::size_t>(rank)];
    to.lanes.front().steps.push_back(Await{{counter, rank, entry}, growth});
    to.issue.push_back(0);
  }
}

void grow_counters(Plan& plan, const RankPlan& rank) {
  std::set<std::int32_t> queues;  // a shared pass notifies once, in whichever lane
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps) {
      const auto* pass = std::get_if<Elementwise>(&step);
      if (!pass || pass->queue < 0 || queues.insert(pass->queue).second) add_growth(plan, step);
    }
}

}  // namespace shingle::planner
