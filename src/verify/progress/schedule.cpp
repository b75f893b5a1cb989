#include "schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "issue_queue.hpp"
#include "meetings.hpp"
#include "plan/steps.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {

namespace {

/// Memory for a segment, its event and the data that Order keeps for them.
constexpr std::size_t segment_bytes = 384;

struct LaneState {
  std::int32_t rank, lane, line;
  std::int32_t epoch = 0;
  std::size_t step = 0;
  std::size_t run = 0;
  std::int32_t waiting = -1;  ///< segment of a collective or exchange that the lane has entered
};

/// Progress of a work queue that several lanes share. Any of these lanes that reaches it does the next run.
struct QueueState {
  std::int32_t line = 0;
  std::int32_t epoch = 0;
  std::size_t run = 0;
};

class Run {
 public:
  Run(const Plan& plan, std::int32_t epochs, bool hardware_queue, Budget* budget)
      : plan_(plan), hardware_queue_(hardware_queue), budget_(budget), meetings_(plan) {
    out_.epochs = epochs;
    std::size_t counts = 0;
    for (const Counter& counter : plan.counters) {
      first_count_.emplace_back();
      for (const auto& entries : counter.growth) {
        first_count_.back().push_back(counts);
        counts += entries.size();
      }
    }
    keep(counts * (sizeof(CountHistory) + sizeof(std::int64_t)));
    values_.assign(counts, 0);
    if (!hardware_queue_) out_.counts.resize(counts);
    for (int r = 0; r < plan.world(); ++r) {
      finished_.push_back(0);
      opened_.push_back(-1);
      for (int l = 0; l < static_cast<int>(plan.ranks[r].lanes.size()); ++l) {
        lanes_.push_back({r, l, static_cast<std::int32_t>(lanes_.size())});
        boundaries_.emplace_back();
        for (const Step& step : plan.ranks[r].lanes[l].steps)
          boundaries_.back().push_back(run_boundaries(step));
      }
      issue_.emplace_back(plan.ranks[r]);
    }
    out_.lines = user_line(plan, plan.world());
    number_lines();
  }

  /// Lists the lines of each rank, and gives each queue a line.
  void number_lines() {
    out_.rank_lines.resize(plan_.ranks.size());
    for (const LaneState& lane : lanes_) out_.rank_lines[lane.rank].push_back(lane.line);
    for (const LaneState& lane : lanes_) {
      for (const Step& step : plan_.ranks[lane.rank].lanes[lane.lane].steps)
        if (queue_of(step) >= 0 &&
            queues_.emplace(std::pair{lane.rank, queue_of(step)}, QueueState{out_.lines}).second)
          out_.rank_lines[lane.rank].push_back(out_.lines++);
    }
  }

  Schedule go() {
    for (int r = 0; r < plan_.world(); ++r) {
      open_epoch(r);
      // A rank without lanes awaits nothing, but its user still reads its outputs.
      while (plan_.ranks[r].lanes.empty() && opened_[r] < out_.epochs) open_epoch(r);
    }
    for (bool progress = true; progress && out_.mismatch.empty();) {
      progress = false;
      for (LaneState& lane : lanes_)
        while (out_.mismatch.empty() && advance(lane)) progress = true;
    }
    if (out_.mismatch.empty()) explain_stop();
    return std::move(out_);
  }

 private:
  /// Position of the lane's step in the issue order, all epochs counted.
  std::int64_t issued_at(const LaneState& lane) const {
    return issue_[lane.rank].position(lane.lane, lane.step, lane.epoch);
  }

  /// True if the step's turn in the single hardware queue has not come, because a step issued earlier is
  /// still in the queue.
  bool held_back(const LaneState& lane) const {
    return hardware_queue_ && issued_at(lane) > issue_[lane.rank].head();
  }

  /// Takes the lane's step out of the hardware queue: it starts, or its wait in the queue is over.
  void leave_queue(const LaneState& lane) {
    if (hardware_queue_ && issued_at(lane) == issue_[lane.rank].head()) issue_[lane.rank].advance();
  }

  std::size_t count_index(const CounterRef& at) const { return first_count_[at.counter][at.rank] + at.entry; }

  std::int64_t base(const CounterRef& at, std::int32_t epoch) const {
    return std::int64_t{epoch} * plan_.counters[at.counter].growth[at.rank][at.entry];
  }

  bool reached(const CounterRef& at, std::uint32_t target, std::int32_t epoch) const {
    return values_[count_index(at)] >= base(at, epoch) + target;
  }

  void spend(Budget::Work what, std::size_t count) const {
    if (budget_) budget_->spend(what, static_cast<std::int64_t>(count));
  }
  void keep(std::size_t bytes) {
    if (budget_ && !hardware_queue_) budget_->keep(Budget::schedule, static_cast<std::int64_t>(bytes));
  }
  /// Records an event, except with a single hardware queue: of that run only the end is used.
  void happened(Event event) {
    if (!hardware_queue_) out_.events.push_back(std::move(event));
  }

  CountHistory& history(const CounterRef& at) {
    CountHistory& history = out_.counts[count_index(at)];
    history.at = at;
    return history;
  }

  void record_await(const CounterRef& at, std::uint32_t target, std::int32_t epoch, std::int32_t segment,
                    bool of_parts = false) {
    spend(Budget::tried, 1);
    if (hardware_queue_) return;
    keep(2 * sizeof(Signal));
    history(at).awaits.push_back({segment, base(at, epoch) + target, 0, of_parts});
  }

  void add(const CounterRef& at, std::int64_t amount, std::int64_t at_once, std::int32_t epoch,
           std::int32_t segment) {
    if (amount == 0) return;
    std::int64_t& value = values_[count_index(at)];
    if (plan_.counters[at.counter].kind == CounterKind::set) {
      amount += base(at, epoch);
      value = std::max(value, amount);
    } else {
      value += amount;
    }
    spend(Budget::tried, 1);
    if (hardware_queue_) return;
    keep(2 * sizeof(Signal));
    history(at).adds.push_back({segment, amount, at_once, false});
  }

  std::int32_t segment(const LaneState& lane, std::int64_t first, std::int64_t last, bool closes,
                       const QueueState* queue = nullptr) {
    Segment s;
    s.rank = lane.rank;
    s.lane = lane.lane;
    s.step = static_cast<std::int32_t>(lane.step);
    s.epoch = lane.epoch;
    s.first = first;
    s.last = last;
    s.line = lane.line;
    s.seq = static_cast<std::uint32_t>(lane.epoch * boundaries_[lane.line].size() + lane.step + 1);
    if (queue) {
      s.line = queue->line;
      s.seq = static_cast<std::uint32_t>(lane.epoch + 1);
    }
    s.closes = closes;
    spend(Budget::ran, 1);
    keep(segment_bytes);
    out_.segments.push_back(s);
    return static_cast<std::int32_t>(out_.segments.size()) - 1;
  }

  /// A turn of the user: reads the outputs of the last epoch and writes the inputs of the next.
  void open_epoch(int rank) {
    Segment s;
    s.rank = rank;
    s.lane = -1;
    s.epoch = ++opened_[rank];
    s.line = user_line(plan_, rank);
    s.seq = static_cast<std::uint32_t>(s.epoch + 1);
    out_.segments.push_back(s);
    happened({EventKind::segment, {static_cast<std::int32_t>(out_.segments.size()) - 1}});
  }

  void next_step(LaneState& lane) {
    const std::size_t steps = boundaries_[lane.line].size();
    if (steps > 0) leave_queue(lane);
    lane.run = 0;
    lane.waiting = -1;
    if (++lane.step < steps) return;
    lane.step = 0;
    ++lane.epoch;
    const auto lanes = static_cast<std::int32_t>(plan_.ranks[lane.rank].lanes.size());
    if (++finished_[lane.rank] % lanes == 0) open_epoch(lane.rank);
  }

  bool advance(LaneState& lane) {
    spend(Budget::tried, 1);
    if (lane.epoch == out_.epochs || opened_[lane.rank] < lane.epoch) return false;
    const auto& steps = plan_.ranks[lane.rank].lanes[lane.lane].steps;
    if (steps.empty()) {
      next_step(lane);
      return true;
    }
    if (held_back(lane)) return false;
    const Step& step = steps[lane.step];
    const std::int64_t head = issue_[lane.rank].head();
    if (!waits_in_queue(step)) leave_queue(lane);
    return run_step(lane, step) || issue_[lane.rank].head() > head;
  }

  bool run_step(LaneState& lane, const Step& step) {
    if (const auto* collective = std::get_if<Collective>(&step)) return meet(lane, *collective);
    if (const auto* exchange = std::get_if<Exchange>(&step)) return post(lane, *exchange);
    if (const auto* await = std::get_if<Await>(&step)) {
      if (!reached(await->counter, await->target, lane.epoch)) return false;
      const std::int32_t s = segment(lane, 0, 1, true);
      record_await(await->counter, await->target, lane.epoch, s);
      happened({EventKind::segment, {s}});
      next_step(lane);
      return true;
    }
    return run_items(lane, step);
  }

  bool run_items(LaneState& lane, const Step& step) {
    const auto& bounds = boundaries_[lane.line][lane.step];
    QueueState* queue = queue_at(lane, step);
    if (queue &&
        queue->epoch > lane.epoch) {  // all items are done: the lane goes on, without knowing of them
      happened({EventKind::segment, {segment(lane, bounds.back(), bounds.back(), true)}});
      next_step(lane);
      return true;
    }
    std::size_t& run = queue ? queue->run : lane.run;
    const std::int64_t first = bounds[run], last = bounds[run + 1];
    // Phantom tiles await nothing and add nothing. Row-wise steps, where items are not positions, have no
    // hooks.
    const auto* gates = gates_of(step);
    const auto* notifies = notifies_of(step);
    const bool hooked = (gates && !gates->empty()) || (notifies && !notifies->empty());
    const TileGrid* grid = grid_of(step);
    const std::int64_t tiles = hooked ? grid->tiles_before(last) - grid->tiles_before(first) : 0;
    if (hooked) spend(Budget::tried, gates->size() + notifies->size());
    if (tiles > 0)
      for (const TileGate& gate : *gates)
        if (!open(lane, gate, first)) return false;
    const std::int32_t s = segment(lane, first, last, run + 2 == bounds.size(), queue);
    happened({EventKind::segment, {s}});
    if (tiles > 0) {
      for (const TileGate& gate : *gates)
        if (const std::uint32_t target = gate_target(gate, first); target > 0)
          record_await(gate_at(lane.rank, gate, first), target, lane.epoch, s, gate.of_parts);
      for (const TileNotify& notify : *notifies) {
        const std::int64_t group = group_of(notify.ends, first);
        notify.for_each_rank(group, [&](std::int32_t rank) {
          add({notify.counter, rank, notify.entry(group)}, tiles, 1, lane.epoch, s);
        });
      }
    }
    if (const auto* notify = std::get_if<Notify>(&step))
      add(notify->counter, notify->value, notify->value, lane.epoch, s);
    if (!out_.segments[s].closes) {
      ++run;
    } else if (queue) {
      *queue = {queue->line, queue->epoch + 1, 0};
    } else {
      next_step(lane);
    }
    return true;
  }

  QueueState* queue_at(const LaneState& lane, const Step& step) {
    const std::int32_t queue = queue_of(step);
    return queue < 0 ? nullptr : &queues_.at({lane.rank, queue});
  }

  static CounterRef gate_at(int rank, const TileGate& gate, std::int64_t item) {
    return {gate.counter, rank, gate.entry(group_of(gate.ends, item))};
  }
  static std::uint32_t gate_target(const TileGate& gate, std::int64_t item) {
    return gate.targets[static_cast<std::size_t>(group_of(gate.ends, item))];
  }

  /// True if an item need not wait at the gate. An item also waits at gates of its parts before it begins: a
  /// backend that computes its product before that holds its worker just as long.
  bool open(const LaneState& lane, const TileGate& gate, std::int64_t item) const {
    const std::uint32_t target = gate_target(gate, item);
    return target == 0 || reached(gate_at(lane.rank, gate, item), target, lane.epoch);
  }

  /// Enters a collective. The last rank to enter completes it for all.
  bool meet(LaneState& lane, const Collective& collective) {
    if (lane.waiting < 0) {
      lane.waiting = segment(lane, 0, 1, true);
      auto call = meetings_.enter(collective.communicator, lane.rank, lane.waiting, out_.segments);
      if (call.empty()) return false;
      out_.mismatch = meetings_.mismatch(collective.communicator, call, out_.segments);
      happened({EventKind::collective, std::move(call)});
    } else if (!meetings_.complete(lane.waiting)) {
      return false;
    }
    next_step(lane);
    return true;
  }

  /// Posts the messages of an exchange. It ends when each message has met its counterpart.
  bool post(LaneState& lane, const Exchange& exchange) {
    if (lane.waiting < 0) {
      lane.waiting = segment(lane, 0, 1, true);
      happened({EventKind::segment, {lane.waiting}});
      for (Event& message : meetings_.post(exchange, lane.rank, lane.waiting)) happened(std::move(message));
    }
    if (!meetings_.all_met(lane.waiting)) return false;
    next_step(lane);
    return true;
  }

  /// Describes, for every unfinished lane, its step and what this waits for.
  void explain_stop() {
    for (const LaneState& lane : lanes_) {
      if (lane.epoch == out_.epochs) continue;
      if (!out_.stuck.empty()) out_.stuck += "; ";
      const auto& steps = plan_.ranks[lane.rank].lanes[lane.lane].steps;
      if (opened_[lane.rank] < lane.epoch) {
        out_.stuck += fmt::format("rank {}, lane {} waits for the other lanes of its rank", lane.rank,
                                  plan_.ranks[lane.rank].lanes[lane.lane].name);
        continue;
      }
      out_.stuck += where(plan_, lane.rank, lane.lane, static_cast<int>(lane.step)) + " " +
                    waits_for(lane, steps[lane.step]);
      if (lane.epoch > 0) out_.stuck += fmt::format(" in epoch {}", lane.epoch);
    }
  }

  std::string waits_for(const LaneState& lane, const Step& step) const {
    if (held_back(lane)) {
      const auto [other, at] = issue_[lane.rank].next();
      return fmt::format("waits in the hardware queue behind {}", where(plan_, lane.rank, other, at));
    }
    if (const auto* await = std::get_if<Await>(&step))
      return short_of(await->counter, await->target, lane.epoch);
    if (const auto* gates = gates_of(step)) {
      const std::int32_t queue = queue_of(step);
      const std::int64_t item =
          boundaries_[lane.line][lane.step][queue < 0 ? lane.run : queues_.at({lane.rank, queue}).run];
      for (const TileGate& gate : *gates)
        if (!open(lane, gate, item))
          return short_of(gate_at(lane.rank, gate, item), gate_target(gate, item), lane.epoch);
    }
    if (const auto* collective = std::get_if<Collective>(&step)) {
      return fmt::format("waits for rank {}",
                         fmt::join(meetings_.missing(collective->communicator, lane.rank), ", "));
    }
    return "waits for the counterparts of its messages";
  }

  std::string short_of(const CounterRef& at, std::uint32_t target, std::int32_t epoch) const {
    const Counter& counter = plan_.counters[at.counter];
    return fmt::format("waits for {}[{}] on rank {}: {} of {}", counter.name, at.entry, at.rank,
                       values_[count_index(at)] - base(at, epoch), target);
  }

  const Plan& plan_;
  bool hardware_queue_;
  Budget* budget_;
  Schedule out_;
  std::vector<LaneState> lanes_;
  std::vector<std::vector<std::vector<std::int64_t>>> boundaries_;      // [line][step]
  std::vector<IssueQueue> issue_;                                       // by rank
  std::map<std::pair<std::int32_t, std::int32_t>, QueueState> queues_;  // [rank, queue]
  std::vector<std::vector<std::size_t>> first_count_;                   // [counter][rank]
  std::vector<std::int64_t> values_;
  std::vector<std::int32_t> finished_, opened_;  // by rank
  Meetings meetings_;
};

}  // namespace

std::int32_t user_line(const Plan& plan, int rank) {
  std::int32_t lanes = 0;
  for (const RankPlan& ranks : plan.ranks) lanes += static_cast<std::int32_t>(ranks.lanes.size());
  return lanes + rank;
}

Schedule run_greedily(const Plan& plan, std::int32_t epochs, bool hardware_queue, Budget* budget) {
  return Run(plan, epochs, hardware_queue, budget).go();
}

}  // namespace shingle
