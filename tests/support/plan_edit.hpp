// Editing plans: steps in and out of lanes with the order of issue kept, and what counters grow by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shingle/plan/placement.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::test {

/// A step of a plan.
struct At {
  int rank = 0;
  int lane = 0;
  int step = 0;
};

inline Lane& lane_of(Plan& plan, const At& at) {
  return plan.ranks[static_cast<std::size_t>(at.rank)].lanes[static_cast<std::size_t>(at.lane)];
}
inline const Lane& lane_of(const Plan& plan, const At& at) {
  return plan.ranks[static_cast<std::size_t>(at.rank)].lanes[static_cast<std::size_t>(at.lane)];
}
inline Step& step_of(Plan& plan, const At& at) {
  return lane_of(plan, at).steps[static_cast<std::size_t>(at.step)];
}
inline const Step& step_of(const Plan& plan, const At& at) {
  return lane_of(plan, at).steps[static_cast<std::size_t>(at.step)];
}

template <class Visit>
void for_each_step(const Plan& plan, Visit&& visit) {
  for (int r = 0; r < static_cast<int>(plan.ranks.size()); ++r) {
    const auto& lanes = plan.ranks[static_cast<std::size_t>(r)].lanes;
    for (int l = 0; l < static_cast<int>(lanes.size()); ++l)
      for (int s = 0; s < static_cast<int>(lanes[static_cast<std::size_t>(l)].steps.size()); ++s) {
        const At at{r, l, s};
        visit(at, step_of(plan, at));
      }
  }
}

/// Where in a rank's order of issue a step (or the one that would follow the lane's last) stands.
inline std::ptrdiff_t issue_position(const Plan& plan, const At& at) {
  const auto& issue = plan.ranks[static_cast<std::size_t>(at.rank)].issue;
  int before = at.step;
  std::ptrdiff_t position = 0;
  for (; position < static_cast<std::ptrdiff_t>(issue.size()); ++position)
    if (issue[static_cast<std::size_t>(position)] == at.lane && before-- == 0) break;
  return position;
}

inline void remove_step(Plan& plan, const At& at) {
  auto& issue = plan.ranks[static_cast<std::size_t>(at.rank)].issue;
  issue.erase(issue.begin() + issue_position(plan, at));
  auto& steps = lane_of(plan, at).steps;
  steps.erase(steps.begin() + at.step);
}

/// Before the step that is there now.
inline void insert_step(Plan& plan, const At& at, Step step) {
  auto& issue = plan.ranks[static_cast<std::size_t>(at.rank)].issue;
  issue.insert(issue.begin() + issue_position(plan, at), at.lane);
  auto& steps = lane_of(plan, at).steps;
  steps.insert(steps.begin() + at.step, std::move(step));
}

/// Tiles that each group of positions counts, of those in [first, last).
inline std::vector<std::uint32_t> tiles_in_groups(const TileGrid& grid, const std::vector<std::int64_t>& ends,
                                                  std::int64_t first, std::int64_t last) {
  std::vector<std::uint32_t> counts;
  std::int64_t before = grid.tiles_before(first);
  for (const std::int64_t end : ends) {
    const std::int64_t tiles = grid.tiles_before(larger(first, smaller(end, last)));
    counts.push_back(static_cast<std::uint32_t>(tiles - before));
    before = tiles;
  }
  return counts;
}

/// Declares what the counters grow by, as the steps have it.
inline void count_growth(Plan& plan) {
  for (Counter& counter : plan.counters)
    for (auto& entries : counter.growth) std::fill(entries.begin(), entries.end(), 0);
  const auto growth = [&](std::int32_t counter, std::int32_t rank, std::size_t entry) -> std::uint32_t& {
    return plan.counters[static_cast<std::size_t>(counter)].growth[static_cast<std::size_t>(rank)][entry];
  };
  const auto tiles = [&](const TileGrid& grid, const std::vector<TileNotify>& notifies, std::int64_t first,
                         std::int64_t last) {
    for (const TileNotify& notify : notifies) {
      const auto counts = tiles_in_groups(grid, notify.ends, first, last);
      for (std::size_t g = 0; g < counts.size(); ++g) {
        const auto group = static_cast<std::int64_t>(g);
        notify.for_each_rank(group, [&](std::int32_t rank) {
          growth(notify.counter, rank, static_cast<std::size_t>(notify.entry(group))) += counts[g];
        });
      }
    }
  };
  std::set<std::pair<int, int>> queues;  // by rank: a shared pass notifies once
  for_each_step(plan, [&](const At& where, const Step& step) {
    if (const auto* gemm = std::get_if<Gemm>(&step))
      tiles(gemm->grid, gemm->notify, 0, gemm->grid.positions());
    if (const auto* pass = std::get_if<Elementwise>(&step);
        pass && (pass->queue < 0 || queues.emplace(where.rank, pass->queue).second))
      tiles(pass->grid, pass->notify, pass->first, last_item(*pass));
    if (const auto* notify = std::get_if<Notify>(&step)) {
      const CounterRef& at = notify->counter;
      auto& grown = growth(at.counter, at.rank, static_cast<std::size_t>(at.entry));
      const bool set = plan.counters[static_cast<std::size_t>(at.counter)].kind == CounterKind::set;
      grown = set ? std::max(grown, notify->value) : grown + notify->value;
    }
  });
}

/// Rows that the tiles at positions [first, last) store, or would if their sources held any.
inline std::int64_t rows_stored(const Plan& plan, const TileGrid& grid, const Placement& to,
                                std::int64_t first, std::int64_t last) {
  std::int64_t rows = 0;
  for (std::int64_t position = first; position < last; ++position)
    for_each_piece(to, grid, plan.routing(), position, [&](const Piece& piece) { rows += piece.rows; });
  return rows;
}

/// Whether a step touches no element at all. Awaits and notifies do not.
inline bool moves_nothing(const Plan& plan, const Step& step) {
  if (const auto* gemm = std::get_if<Gemm>(&step))
    return rows_stored(plan, gemm->grid, gemm->out, 0, gemm->grid.positions()) == 0;
  if (const auto* pass = std::get_if<Elementwise>(&step)) {
    const bool by_rows = row_wise(*pass);
    return rows_stored(plan, pass->grid, pass->to, by_rows ? 0 : pass->first,
                       by_rows ? pass->grid.positions() : last_item(*pass)) == 0;
  }
  if (const auto* collective = std::get_if<Collective>(&step))
    return collective->send.rows + collective->recv.rows == 0;
  return std::holds_alternative<Await>(step) || std::holds_alternative<Notify>(step);
}

}  // namespace shingle::test
