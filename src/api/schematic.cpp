// A plan laid out in time without being run.
#include <algorithm>

#include "plan/schedule.hpp"
#include "shingle/api/trace.hpp"

namespace shingle {
namespace {

constexpr double unit_us = 100;  // a wave of tiles

/// Elements of a wave of the plan's largest GEMM tile.
double wave_elements(const Plan& plan) {
  const double workers = std::max(plan.workers, 1);
  const double tile =
      static_cast<double>(std::max(plan.params.tile_rows, 1)) * std::max(plan.params.tile_cols, 1);
  const double all = static_cast<double>(plan.problem.m) * static_cast<double>(plan.problem.n);
  return std::max(tile > 1 ? tile * workers : all / 8, 1.0);  // a plan without tiles: eight waves in all
}

double elements(const TileGrid& grid, std::int64_t first, std::int64_t last) {
  const auto share =
      static_cast<double>(last - first) / static_cast<double>(std::max<std::int64_t>(grid.positions(), 1));
  return share * static_cast<double>(grid.rows) * static_cast<double>(grid.cols);
}

/// The group of a run of tiles, where the step notifies or is gated by groups.
int group_at(const Step& step, std::int64_t position) {
  const auto group = [&](const auto& tiled) {
    if (!tiled.notify.empty()) return static_cast<int>(group_of(tiled.notify[0].ends, position));
    if (!tiled.gates.empty()) return static_cast<int>(group_of(tiled.gates[0].ends, position));
    return -1;
  };
  if (const auto* gemm = std::get_if<Gemm>(&step)) return group(*gemm);
  if (const auto* pass = std::get_if<Elementwise>(&step)) return group(*pass);
  if (const auto* attend = std::get_if<Attend>(&step)) return group(*attend);
  return -1;
}

double size_of(const Slice& slice) {
  return static_cast<double>(slice.rows) * static_cast<double>(slice.cols);
}

double cost_us(const Plan& plan, const Segment& segment) {
  const Step& step = plan.ranks[segment.rank].lanes[segment.lane].steps[segment.step];
  double work = 0;
  if (const auto* gemm = std::get_if<Gemm>(&step)) {
    work = elements(gemm->grid, segment.first, segment.last);
  } else if (const auto* attend = std::get_if<Attend>(&step)) {
    work = elements(attend->grid, segment.first, segment.last);
  } else if (const auto* pass = std::get_if<Elementwise>(&step)) {
    const bool rows = row_wise(*pass);
    const auto tiles = rows ? std::max<std::int64_t>(pass->grid.tiles_n(), 1) : 1;
    work = elements(pass->grid, segment.first * tiles, segment.last * tiles) /
           8;  // memory-bound: much faster than a GEMM
  } else if (const auto* collective = std::get_if<Collective>(&step)) {
    work = std::max(size_of(collective->send), size_of(collective->recv));
  } else if (const auto* exchange = std::get_if<Exchange>(&step)) {
    for (const auto& message : exchange->sends) work += size_of(message.slice);
  } else if (const auto* copy = std::get_if<Copy>(&step)) {
    work = size_of(copy->from);
  } else if (const auto* broadcast = std::get_if<Broadcast>(&step)) {
    work = size_of(broadcast->from);
  } else if (const auto* swap = std::get_if<Swap>(&step)) {
    work = size_of(swap->a);
  }
  return unit_us * work / wave_elements(plan);
}

/// The adds that have happened to each count so far, and who waits for it.
class Clock {
 public:
  explicit Clock(const Schedule& schedule)
      : schedule_(schedule),
        end_(schedule.segments.size(), 0),
        awaits_(schedule.segments.size()),
        lines_(static_cast<std::size_t>(schedule.lines), 0) {
    for (const CountHistory& count : schedule.counts)
      for (const Signal& await : count.awaits) awaits_[await.segment].push_back({&count, await.amount});
  }

  /// When a segment can start: after what precedes it in its lane and after the counts that it awaits.
  double ready(std::int32_t segment) const {
    double at = lines_[schedule_.segments[segment].line];
    for (const auto& [count, target] : awaits_[segment]) at = std::max(at, reached(*count, target));
    return at;
  }
  double end(std::int32_t segment) const { return end_[segment]; }
  void finish(std::int32_t segment, double at) {
    end_[segment] = std::max(end_[segment], at);
    double& line = lines_[schedule_.segments[segment].line];
    line = std::max(line, at);
  }

 private:
  double reached(const CountHistory& count, std::int64_t target) const {
    double at = 0;
    for (const Signal& add : count.adds) {  // in the order in which they can happen
      if (target <= 0) break;
      target -= add.amount;
      at = std::max(at, end_[add.segment]);
    }
    return at;
  }

  const Schedule& schedule_;
  std::vector<double> end_;
  std::vector<std::vector<std::pair<const CountHistory*, std::int64_t>>> awaits_;
  std::vector<double> lines_;
};

}  // namespace

Timeline schematic(const Plan& plan) {
  const Schedule schedule = run_greedily(plan, 1, false);
  Timeline timeline{describe(plan.problem), plan, {}};
  Clock clock(schedule);
  for (const Event& event : schedule.events) {
    double begin = 0, cost = 0;
    for (const std::int32_t s : event.segments) begin = std::max(begin, clock.ready(s));
    for (const std::int32_t s : event.segments)
      if (schedule.segments[s].lane >= 0) cost = std::max(cost, cost_us(plan, schedule.segments[s]));
    for (const std::int32_t s : event.segments) {
      const Segment& segment = schedule.segments[s];
      clock.finish(s, begin + cost);
      if (segment.lane < 0 || cost == 0) continue;
      const Step& step = plan.ranks[segment.rank].lanes[segment.lane].steps[segment.step];
      timeline.spans.push_back(
          {segment.rank, segment.lane, segment.step, group_at(step, segment.first), 0, begin, begin + cost});
    }
  }
  return timeline;
}

}  // namespace shingle
