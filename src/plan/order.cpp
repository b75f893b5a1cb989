#include "order.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

namespace shingle {
namespace {

/// Adds what `other` knows.
void join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.lines.size(); ++i)
    clock.lines[i] = std::max(clock.lines[i], other.lines[i]);
  if (other.runs.empty()) return;
  std::vector<std::int32_t> merged;
  merged.reserve(clock.runs.size() + other.runs.size());
  std::set_union(clock.runs.begin(), clock.runs.end(), other.runs.begin(), other.runs.end(),
                 std::back_inserter(merged));
  clock.runs = std::move(merged);
}

/// Whether a rank gets data of participant i of a collective, so that it cannot leave before that one has
/// come. Libraries let a rank that gets nothing pass.
bool receives_of(const Collective& collective, std::size_t i) {
  return collective.kind == CollectiveKind::alltoall ? collective.recv_rows[i] > 0 : collective.recv.rows > 0;
}

}  // namespace

Order::Order(const Plan& plan, const Schedule& schedule)
    : plan_(plan),
      schedule_(schedule),
      clocks_(schedule.segments.size()),
      awaited_(schedule.segments.size()) {
  std::map<std::array<std::int64_t, 3>, std::int32_t>
      known;  // line, step and first item; a queue is one step
  for (std::size_t i = 0; i < schedule.segments.size(); ++i) {
    const Segment& s = schedule.segments[i];
    const bool queue = s.line >= user_line(plan, plan.problem.world);
    const auto [at, added] = known.emplace(std::array<std::int64_t, 3>{s.line, queue ? 0 : s.step, s.first},
                                           static_cast<std::int32_t>(instances_.size()));
    if (added) instances_.emplace_back(static_cast<std::size_t>(schedule.epochs) + 1, -1);
    instances_[static_cast<std::size_t>(at->second)][static_cast<std::size_t>(s.epoch)] =
        static_cast<std::int32_t>(i);
    of_.push_back(at->second);
  }
  do {
    run_clocks();
  } while (find_edges());
  find_unbounded();
}

bool Order::knows(const Clock& clock, std::int32_t earlier) const {
  const Segment& s = schedule_.segments[earlier];
  return clock.lines[s.line] >= s.seq || std::binary_search(clock.runs.begin(), clock.runs.end(), earlier);
}

bool Order::carries_data(const Event& message) const {
  const Segment& s = schedule_.segments[message.segments[1]];
  return std::get<Exchange>(plan_.ranks[s.rank].lanes[s.lane].steps[s.step])
             .receives[message.receive]
             .slice.rows > 0;
}

/// Whether a segment is a command of a copy lane, which others behind it may overtake.
bool Order::overtakes(const Segment& s) const {
  const Lane& lane = plan_.ranks[s.rank].lanes[s.lane];
  return lane.kind == LaneKind::copy && is_command(lane.steps[s.step]);
}

void Order::run_clocks() {
  const auto lines = static_cast<std::size_t>(schedule_.lines);
  const auto nothing = std::make_shared<const Clock>(Clock{std::vector<std::uint32_t>(lines, 0), {}});
  std::vector<std::shared_ptr<const Clock>> now(lines, nothing);  // after the last finished step of each line
  std::vector<Clock> step(lines);  // of an unfinished tiled step: what its runs so far know together
  std::vector<std::vector<std::int32_t>> under_way(
      lines);  // commands of copy lanes that nothing has waited for

  // Runs that the lines already cover need no mention of their own.
  const auto pruned = [&](Clock clock) {
    std::erase_if(clock.runs, [&](std::int32_t run) {
      const Segment& s = schedule_.segments[run];
      return clock.lines[s.line] >= s.seq;
    });
    return std::make_shared<const Clock>(std::move(clock));
  };
  // What others learn of a segment: all it knows, and the segment itself.
  const auto learn = [&](Clock& clock, std::int32_t segment) {
    join(clock, *clocks_[segment]);
    const Segment& s = schedule_.segments[segment];
    if (clock.lines[s.line] < s.seq) {
      const auto at = std::lower_bound(clock.runs.begin(), clock.runs.end(), segment);
      if (at == clock.runs.end() || *at != segment) clock.runs.insert(at, segment);
    }
  };
  const auto finish = [&](const Segment& s, Clock clock) {
    clock.lines[s.line] = s.seq;
    now[s.line] = pruned(std::move(clock));
  };

  const auto run_segment = [&](std::int32_t index) {
    const Segment& s = schedule_.segments[index];
    if (s.lane < 0) {  // the user: joins the lanes of the rank, and all of them start from here
      Clock clock = *now[s.line];
      for (const std::int32_t line : schedule_.rank_lines[s.rank]) join(clock, *now[line]);
      clocks_[index] = pruned(std::move(clock));
      finish(s, *clocks_[index]);
      const auto& lanes = plan_.ranks[s.rank].lanes;
      const auto& lines_of_rank = schedule_.rank_lines[s.rank];
      for (std::size_t l = 0; l < lines_of_rank.size(); ++l) {
        // What is prelaunched goes on as soon as its poll lets it: it knows of the epoch what that tells it.
        if (l < lanes.size() && lanes[l].submission.prelaunched) continue;
        now[lines_of_rank[l]] = now[s.line];
      }
      return;
    }
    if (awaited_[index].empty()) {
      clocks_[index] = now[s.line];
    } else {
      Clock clock = *now[s.line];
      for (const std::int32_t added : awaited_[index]) learn(clock, added);
      clocks_[index] = pruned(std::move(clock));
    }
    auto& commands = under_way[s.line];
    const Lane& lane = plan_.ranks[s.rank].lanes[s.lane];
    const bool ends = static_cast<std::size_t>(s.step) + 1 == lane.steps.size();
    if (overtakes(s)) commands.push_back(index);
    if (!commands.empty()) {
      Clock clock = *clocks_[index];
      if (ends || std::holds_alternative<Notify>(lane.steps[s.step])) {
        for (const std::int32_t command : commands) learn(clock, command);
        commands.clear();
        // A notify happens after them as well.
        if (!overtakes(s)) clocks_[index] = pruned(clock);
        finish(s, std::move(clock));
      } else if (!overtakes(s)) {  // an await: those behind it know it, but not the commands before it
        learn(clock, index);
        now[s.line] = pruned(std::move(clock));
      }
      return;
    }
    Clock& sofar = step[s.line];
    if (sofar.lines.empty())
      sofar = *clocks_[index];
    else
      join(sofar, *clocks_[index]);
    if (s.closes) finish(s, std::exchange(sofar, {}));
  };

  for (const Event& event : schedule_.events) {
    switch (event.kind) {
      case EventKind::segment:
        run_segment(event.segments[0]);
        break;
      case EventKind::message: {  // the receiver's later steps know what the sender did before
        const Segment& receiver = schedule_.segments[event.segments[1]];
        if (!carries_data(event)) break;
        Clock clock = *now[receiver.line];
        join(clock, *clocks_[event.segments[0]]);
        now[receiver.line] = pruned(std::move(clock));
        break;
      }
      case EventKind::collective: {
        for (const std::int32_t s : event.segments) clocks_[s] = now[schedule_.segments[s].line];
        for (const std::int32_t s : event.segments) {
          const Segment& at = schedule_.segments[s];
          const auto& collective = std::get<Collective>(plan_.ranks[at.rank].lanes[at.lane].steps[at.step]);
          Clock clock = *clocks_[s];
          for (std::size_t i = 0; i < event.segments.size(); ++i)
            if (receives_of(collective, i)) join(clock, *clocks_[event.segments[i]]);
          finish(at, std::move(clock));
        }
        break;
      }
    }
  }
}

/// Whether others' adds alone may come any number of epochs ahead of an await, which `add` is meant for: the
/// last that was simulated knows neither the await nor the add, in the epoch in which the earlier of these is
/// the first.
bool Order::runs_away(std::int32_t other, std::int32_t await, std::int32_t add) const {
  const std::int32_t last = instance(other, schedule_.epochs - 1);
  const std::int32_t await_epoch = schedule_.segments[await].epoch, add_epoch = schedule_.segments[add].epoch;
  const std::int32_t shift = std::min(await_epoch, add_epoch);
  const std::int32_t first_add = instance(add, add_epoch - shift);
  return last != first_add && !knows(last, instance(await, await_epoch - shift)) && !knows(last, first_add);
}

/// Whether an await's target cannot be reached without an add, whatever other adds have happened by then.
bool Order::certain(const CountHistory& count, const Signal& await, const Signal& add) {
  const bool set = plan_.counters[count.at.counter].kind == CounterKind::set;
  // The most that the count can reach before the await passes, if this add does not happen.
  std::int64_t without = set ? 0 : -add.at_once;
  work_ += static_cast<std::int64_t>(count.adds.size());
  for (const Signal& other : count.adds) {
    if (knows(other.segment, await.segment)) continue;
    if (other.segment != add.segment && knows(other.segment, add.segment)) continue;  // needs this add itself
    if (set) {
      if (&other != &add) without = std::max(without, other.amount);
    } else {
      if (runs_away(other.segment, await.segment, add.segment)) return false;
      without += other.amount;
    }
    if (without >= await.amount) return false;
  }
  return true;
}

bool Order::find_edges() {
  bool grown = false;
  for (const CountHistory& count : schedule_.counts)
    for (const Signal& await : count.awaits) {
      auto& edges = awaited_[await.segment];
      for (const Signal& add : count.adds) {
        if (too_large()) return false;
        if (std::find(edges.begin(), edges.end(), add.segment) != edges.end()) continue;
        if (knows(add.segment, await.segment)) continue;  // comes after the await
        if (!certain(count, await, add)) continue;
        edges.push_back(add.segment);
        grown = true;
      }
    }
  return grown;
}

void Order::find_unbounded() {
  for (const CountHistory& count : schedule_.counts)
    for (const Signal& await : count.awaits)
      for (const Signal& add : count.adds) {
        if (unbounded_ >= 0 || too_large()) return;
        ++work_;
        if (!knows(instance(add.segment, schedule_.epochs - 1), instance(await.segment, 0)))
          unbounded_ = add.segment;
      }
}

}  // namespace shingle
