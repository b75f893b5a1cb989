#include <algorithm>
#include <iterator>
#include <utility>

#include "event_edges.hpp"
#include "graph_fitness.hpp"
#include "launch_program.hpp"
#include "launch_rules.hpp"
#include "plan/steps.hpp"

namespace shingle {
namespace {

/// Lowers the lanes of one rank.
class RankLowering {
 public:
  RankLowering(const Plan& plan, const EventEdges& edges, std::int32_t rank)
      : plan_(plan), edges_(edges), rank_(rank), of_(plan.ranks[static_cast<std::size_t>(rank)]) {}

  RankLaunches run() {
    RankLaunches out{{}, edges_.size(rank_), 0, {}};
    std::vector<std::size_t> next(of_.lanes.size(), 0);
    Group open;
    for (const std::int32_t lane : of_.issue) {
      const std::size_t step = next[static_cast<std::size_t>(lane)]++;
      if (open.lane == lane && joins(open, step)) {
        open.last = step + 1;
        continue;
      }
      append(out.launches, open);
      open = {lane, step, step + 1};
    }
    append(out.launches, open);
    for (const Lane& lane : of_.lanes) {
      out.urgent.push_back(is_urgent(of_, lane));
      for (const Step& one : lane.steps) out.work_queues = std::max(out.work_queues, queue_of(one) + 1);
    }
    return out;
  }

 private:
  /// Steps [first, last) of a lane that form one launch: awaits and notifies, passes that fuse, or a
  /// delivery. They are also consecutive in the issue order. Otherwise a wait would be issued before the step
  /// that ends it. In a single hardware queue it would then block everything behind it.
  struct Group {
    std::int32_t lane = -1;
    std::size_t first = 0, last = 0;
  };

  /// True if the next step of a group's lane becomes part of its launch.
  bool joins(const Group& group, std::size_t step) const {
    const std::vector<Step>& steps = of_.lanes[static_cast<std::size_t>(group.lane)].steps;
    if (counts_arrivals(plan_, steps[group.first]))
      return belongs(plan_, of_.lanes[static_cast<std::size_t>(group.lane)], group.first, step);
    if (synchronises(steps[group.first]))
      return synchronises(steps[step]) && !counts_arrivals(plan_, steps[step]);
    const auto* const pass = std::get_if<Elementwise>(&steps[group.first]);
    const auto* const next = std::get_if<Elementwise>(&steps[step]);
    return pass && next && fuse(plan_, *pass, *next);
  }

  void append(std::vector<Launch>& launches, const Group& group) const {
    const auto [stream, first, last] = group;
    if (first == last) return;
    const Lane& lane = of_.lanes[static_cast<std::size_t>(stream)];
    const Step& step = lane.steps[first];
    const bool delivers = counts_arrivals(plan_, step);
    if (synchronises(step) && !delivers) return append_syncs(launches, stream, first, last);
    Launch launch{.kind = delivers ? LaunchKind::delivery : kind_of(step),
                  .stream = stream,
                  .first = static_cast<std::int32_t>(first),
                  .last = static_cast<std::int32_t>(last),
                  .may_start_early = may_start_early(plan_, rank_, lane, first),
                  .weights_early = weights_early(plan_, rank_, lane, first),
                  .sends_until = static_cast<std::int32_t>(sends_until(plan_, rank_, lane, first))};
    if (delivers && first > 0 && sends_until(plan_, rank_, lane, first - 1) == last)
      launch.sent_by = static_cast<std::int32_t>(first) - 1;
    if (const auto* pass = std::get_if<Elementwise>(&step); pass && by_groups(*pass)) {
      launch.parts = parts_of(*pass);
      if (launch.parts.empty()) return;  // a pass without tiles has no launch
    }
    launches.push_back(std::move(launch));
  }

  /// Appends awaits and notifies. Each event edge is a launch of its own; consecutive others share one.
  void append_syncs(std::vector<Launch>& launches, std::int32_t stream, std::size_t first,
                    std::size_t last) const {
    const Lane& lane = of_.lanes[static_cast<std::size_t>(stream)];
    std::size_t begin = first;
    const auto flush = [&](std::size_t end) {
      if (begin < end)
        launches.push_back({.kind = sync_kind(lane, begin, end),
                            .stream = stream,
                            .first = static_cast<std::int32_t>(begin),
                            .last = static_cast<std::int32_t>(end)});
    };
    for (std::size_t i = first; i < last; ++i) {
      const int event = edges_.of(lane.steps[i]);
      if (event == EventEdges::none) continue;
      flush(i);
      const bool waits = std::holds_alternative<Await>(lane.steps[i]);
      launches.push_back({.kind = waits ? LaunchKind::wait : LaunchKind::record,
                          .stream = stream,
                          .first = static_cast<std::int32_t>(i),
                          .last = static_cast<std::int32_t>(i) + 1,
                          .event = event});
      begin = i + 1;
    }
    flush(last);
  }

  /// A copy engine sets counts by 4-byte copies, in the queue of the copies that the notifies follow. A
  /// kernel instead makes the engine pause before and after it. At the lane's end this pays off for more than
  /// three counts.
  LaunchKind sync_kind(const Lane& lane, std::size_t first, std::size_t last) const {
    constexpr std::size_t many = 3;
    if (lane.kind == LaneKind::host) return LaunchKind::host;
    if (lane.kind != LaneKind::copy || (last == lane.steps.size() && last - first > many))
      return LaunchKind::sync;
    const auto sets = [&](const Step& step) {
      const auto* notify = std::get_if<Notify>(&step);
      return notify &&
             plan_.counters[static_cast<std::size_t>(notify->counter.counter)].kind == CounterKind::set;
    };
    return std::all_of(lane.steps.begin() + static_cast<std::ptrdiff_t>(first),
                       lane.steps.begin() + static_cast<std::ptrdiff_t>(last), sets)
               ? LaunchKind::flags
               : LaunchKind::sync;
  }

  static LaunchKind kind_of(const Step& step) {
    if (std::holds_alternative<Collective>(step) || std::holds_alternative<Exchange>(step))
      return LaunchKind::library;
    return is_command(step) ? LaunchKind::copy : LaunchKind::kernel;
  }

  std::vector<LaunchPart> parts_of(const Elementwise& pass) const {
    const TileGate& gate = pass.gates.front();
    std::vector<LaunchPart> parts;
    for (const GroupOfItems& items : awaited_groups(pass)) {
      const CounterRef count{gate.counter, rank_, gate.entry(items.group)};
      parts.push_back({edges_.of(count), count, gate.targets[static_cast<std::size_t>(items.group)],
                       items.first, items.last});
    }
    return parts;
  }

  const Plan& plan_;
  const EventEdges& edges_;
  std::int32_t rank_;
  const RankPlan& of_;
};

bool creates_commands(const Plan& plan) {
  return std::ranges::any_of(plan.ranks, [](const RankPlan& rank) {
    return std::ranges::any_of(rank.lanes, [](const Lane& lane) { return lane.submission.timed; });
  });
}

}  // namespace

LaunchProgram lower(const Plan& plan) {
  const EventEdges edges(plan);
  LaunchProgram program{{}, unfit_for_graph(plan), creates_commands(plan)};
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    program.ranks.push_back(RankLowering(plan, edges, static_cast<std::int32_t>(rank)).run());
  return program;
}

}  // namespace shingle
