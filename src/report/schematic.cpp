// Schematic timelines: a plan laid out in time without a run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "shingle/base/error.hpp"
#include "trace.hpp"
#include "verify/progress/schedule.hpp"

namespace shingle {
namespace {

constexpr double unit_us = 100;  // time of a wave of tiles

/// Number of elements in a wave of the plan's largest GEMM tile.
double wave_elements(const Plan& plan) {
  const double workers = std::max(plan.workers, 1);
  double tile = 0;
  for (const Lane& lane : plan.ranks.front().lanes)
    for (const Step& step : lane.steps)
      if (const auto* gemm = std::get_if<Gemm>(&step); gemm && gemm->grid.positions() > 1)
        tile = std::max(tile, 1.0 * gemm->grid.tile_rows * gemm->grid.tile_cols);
  const auto of = [](std::int64_t m, std::int64_t n) {
    return static_cast<double>(m) * static_cast<double>(n);
  };
  const Workload* const workload = plan.workload();
  const double all = workload ? of(workload->m(), workload->n()) : of(plan.problem().m, plan.problem().n);
  return std::max(tile > 1 ? tile * workers : all / 8, 1.0);  // a plan without tiles: eight waves in total
}

double elements(const TileGrid& grid, std::int64_t first, std::int64_t last) {
  const auto share =
      static_cast<double>(last - first) / static_cast<double>(std::max<std::int64_t>(grid.positions(), 1));
  return share * static_cast<double>(grid.rows) * static_cast<double>(grid.cols);
}

/// Group of a run of tiles, if the step notifies or is gated by groups; else -1.
int group_at(const Step& step, std::int64_t position) {
  const auto group = [&](const auto& tiled) {
    if (!tiled.notify.empty()) return static_cast<int>(group_of(tiled.notify[0].ends, position));
    if (!tiled.gates.empty()) return static_cast<int>(group_of(tiled.gates[0].ends, position));
    return -1;
  };
  if (const auto* gemm = std::get_if<Gemm>(&step)) return group(*gemm);
  if (const auto* pass = std::get_if<Elementwise>(&step)) return group(*pass);
  if (const auto* attend = std::get_if<Attend>(&step)) return group(*attend);
  if (const auto* merge = std::get_if<Merge>(&step)) return group(*merge);
  if (const auto* back = std::get_if<AttendBackward>(&step)) return group(*back);
  return -1;
}

/// Work of a GEMM for each element that it stores, relative to the problem's product. The two weights of an
/// mlp have different K, and a gate is another product.
double work(const Plan& plan, const Gemm& gemm) {
  const auto k = static_cast<double>(gemm.transpose_a ? gemm.a.rows : gemm.a.cols);
  const double products = gemm.epilogue.activation == Activation::swiglu ? 2 : 1;
  const auto* const problem = std::get_if<Problem>(&plan.work);
  return problem && problem->traits().chains() ? products * k / static_cast<double>(problem->k) : 1;
}

/// Part of the slots that are expected to have a token.
double filled(const Plan& plan) {
  const Problem& problem = plan.problem();
  return static_cast<double>(problem.expected_rows()) / static_cast<double>(problem.experts.capacity);
}

double size_of(const Slice& slice) {
  return static_cast<double>(slice.rows) * static_cast<double>(slice.cols);
}

/// Elements that the busiest link carries in one direction, with a bandwidth-optimal algorithm.
double wire_elements(const Plan& plan, const Collective& collective) {
  const auto ranks = static_cast<double>(plan.communicators[collective.communicator].ranks.size());
  const double all = std::max(size_of(collective.send), size_of(collective.recv));
  return (collective.kind == CollectiveKind::allreduce ? 2 : 1) * all * (ranks - 1) / ranks;
}

/// Cost of any step except exchanges, which are costed by message.
double cost_us(const Plan& plan, const Segment& segment, const UnitCosts& costs) {
  const Step& step = plan.ranks[segment.rank].lanes[segment.lane].steps[segment.step];
  if (const auto* gemm = std::get_if<Gemm>(&step))
    return costs.product_us * work(plan, *gemm) * elements(gemm->grid, segment.first, segment.last) *
           (gemm->live.buffer >= 0 ? filled(plan) : 1);
  if (const auto* attend = std::get_if<Attend>(&step))
    return (costs.attend_us < 0 ? costs.product_us : costs.attend_us) *
           elements(attend->grid, segment.first, segment.last) * static_cast<double>(attend->keys.rows) /
           static_cast<double>(plan.problem().m);
  if (const auto* back = std::get_if<AttendBackward>(&step))  // five products, where the forward has two
    return 2.5 * (costs.attend_us < 0 ? costs.product_us : costs.attend_us) *
           elements(back->grid, segment.first, segment.last) * static_cast<double>(back->keys.rows) /
           static_cast<double>(plan.problem().m);
  if (const auto* merge = std::get_if<Merge>(&step))
    return costs.pass_us * elements(merge->grid, segment.first, segment.last);
  if (const auto* pass = std::get_if<Elementwise>(&step)) {
    const auto tiles = row_wise(*pass) ? std::max<std::int64_t>(pass->grid.tiles_n(), 1) : 1;
    return costs.pass_us * elements(pass->grid, segment.first * tiles, segment.last * tiles) *
           (pass->from.size() == 1 && is_indexed(pass->from.front()) && pass->factors == Slice{}
                ? filled(plan)
                : 1);
  }
  if (const auto* assign = std::get_if<AssignSlots>(&step)) return costs.pass_us * size_of(assign->row_of);
  if (const auto* merge = std::get_if<MergeSlots>(&step)) return costs.pass_us * size_of(merge->slot_of);
  if (const auto* collective = std::get_if<Collective>(&step))
    return costs.transfer_us * wire_elements(plan, *collective);
  if (const auto* copy = std::get_if<Copy>(&step)) return costs.transfer_us * size_of(copy->from);
  if (const auto* broadcast = std::get_if<Broadcast>(&step))
    return costs.transfer_us * size_of(broadcast->from);
  if (const auto* swap = std::get_if<Swap>(&step)) return costs.transfer_us * size_of(swap->a);
  return 0;
}

/// Tracks the adds to each count so far, and the segments that await it.
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

  /// Time at which a segment can start: after its predecessor in the lane and the counts that it awaits.
  double ready(std::int32_t segment) const {
    double at = 0;
    for (const std::int32_t line : lines_of(segment)) at = std::max(at, lines_[line]);
    for (const auto& [count, target] : awaits_[segment]) at = std::max(at, reached(*count, target));
    return at;
  }
  double end(std::int32_t segment) const { return end_[segment]; }
  void finish(std::int32_t segment, double at) {
    end_[segment] = std::max(end_[segment], at);
    for (const std::int32_t line : lines_of(segment)) lines_[line] = std::max(lines_[line], at);
  }

 private:
  /// The segment's own line. For an item of a shared pass, also the line of the lane that does it.
  std::array<std::int32_t, 2> lines_of(std::int32_t segment) const {
    const Segment& s = schedule_.segments[segment];
    return {s.line, s.lane < 0 ? s.line : schedule_.rank_lines[s.rank][s.lane]};
  }
  double reached(const CountHistory& count, std::int64_t target) const {
    double at = 0;
    for (const Signal& add : count.adds) {  // in an order in which they can happen
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

/// Messages of exchanges. A rank's link carries one message at a time in each direction. A message starts
/// when both ends have posted it.
class Messages {
 public:
  Messages(const Plan& plan, const Schedule& schedule)
      : plan_(plan), schedule_(schedule), out_(plan.ranks.size()), in_(plan.ranks.size()) {}

  void post(std::int32_t segment, double at) {
    const Exchange& exchange = of(segment);
    exchanges_[segment] = {at, -1, exchange.sends.size() + exchange.receives.size()};
  }

  /// Passes one message. Returns its arrival time.
  double pass(const Event& event, double transfer_us) {
    State &sender = exchanges_.at(event.segments[0]), &receiver = exchanges_.at(event.segments[1]);
    double &out = out_[schedule_.segments[event.segments[0]].rank],
           &in = in_[schedule_.segments[event.segments[1]].rank];
    const double begin = std::max({sender.posted, receiver.posted, out, in});
    for (State* end : {&sender, &receiver}) {
      if (end->begin < 0) end->begin = begin;
      --end->open;
    }
    return out = in = begin + transfer_us * size_of(of(event.segments[0]).sends[event.send].slice);
  }

  bool complete(std::int32_t segment) const { return exchanges_.at(segment).open == 0; }
  double begin(std::int32_t segment) const { return exchanges_.at(segment).begin; }

 private:
  struct State {
    double posted = 0;
    double begin = -1;     // begin of the first message
    std::size_t open = 0;  // messages that have not passed
  };
  const Exchange& of(std::int32_t segment) const {
    const Segment& s = schedule_.segments[segment];
    return std::get<Exchange>(plan_.ranks[s.rank].lanes[s.lane].steps[s.step]);
  }

  const Plan& plan_;
  const Schedule& schedule_;
  std::vector<double> out_, in_;  // by rank: end of the link's last message
  std::map<std::int32_t, State> exchanges_;
};

/// Places the events of a schedule in time, one after another.
class Layout {
 public:
  Layout(const Plan& plan, const UnitCosts& costs)
      : costs_(costs),
        timeline_{describe(plan.work), plan, {}},
        schedule_(run_greedily(plan, 1, false)),
        clock_(schedule_),
        messages_(timeline_.plan, schedule_) {}

  Timeline go() && {
    for (const Event& event : schedule_.events) {
      if (event.kind == EventKind::message)
        message(event);
      else
        together(event.segments);
    }
    return std::move(timeline_);
  }

 private:
  const Step& step_of(const Segment& s) const {
    return timeline_.plan.ranks[s.rank].lanes[s.lane].steps[s.step];
  }

  /// Places segments that start together and end together: a single one, or those of a collective.
  void together(const std::vector<std::int32_t>& segments) {
    double begin = 0, cost = 0;
    for (const std::int32_t s : segments) begin = std::max(begin, clock_.ready(s));
    for (const std::int32_t s : segments)
      if (schedule_.segments[s].lane >= 0)
        cost = std::max(cost, cost_us(timeline_.plan, schedule_.segments[s], costs_));
    for (const std::int32_t s : segments) {
      clock_.finish(s, begin + cost);
      if (schedule_.segments[s].lane < 0) continue;
      if (std::holds_alternative<Exchange>(step_of(schedule_.segments[s])))
        messages_.post(s, begin);
      else
        span(s, begin, begin + cost);
    }
  }

  void message(const Event& event) {
    const double end = messages_.pass(event, costs_.transfer_us);
    for (const std::int32_t s : event.segments) {
      clock_.finish(s, end);
      if (messages_.complete(s)) span(s, messages_.begin(s), clock_.end(s));
    }
  }

  void span(std::int32_t segment, double begin, double end) {
    const Segment& s = schedule_.segments[segment];
    if (begin < end)
      timeline_.spans.push_back({s.rank, s.lane, s.step, group_at(step_of(s), s.first), 0, begin, end});
  }

  UnitCosts costs_;
  Timeline timeline_;
  Schedule schedule_;
  Clock clock_;
  Messages messages_;
};

}  // namespace

Timeline schematic(const Plan& plan) {
  const double wave = unit_us / wave_elements(plan);
  return schematic(
      plan, {wave, wave / 8, wave, 4 * wave});  // passes are bound by memory, and much faster than GEMMs
}

Timeline schematic(const Plan& plan, const UnitCosts& costs) {
  if (is_symmetric(plan))
    throw InvalidArgument(
        fmt::format("{} ranks stand for all {}: use `shingle simulate` for a timeline of this plan",
                    plan.ranks.size(), plan.world()));
  return Layout(plan, costs).go();
}

}  // namespace shingle
