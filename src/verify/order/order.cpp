#include "order.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace shingle {
namespace {

constexpr std::int32_t never = std::numeric_limits<std::int32_t>::max();

/// True if a rank gets data from participant i of a collective, so that it cannot leave before i has entered.
/// NCCL and MPI may let a rank that gets no data leave earlier.
bool receives_of(const Collective& collective, std::size_t i) {
  return collective.kind == CollectiveKind::alltoall ? collective.recv_rows[i] > 0 : collective.recv.rows > 0;
}

}  // namespace

Order::Order(const Plan& plan, const Schedule& schedule, Setting setting, Budget& budget)
    : plan_(plan),
      schedule_(schedule),
      longest_lag_(setting == Setting::context ? 0 : schedule.epochs - 1),
      budget_(budget),
      clocks_(schedule.segments.size()) {
  index_events();
  index_counts();
  do {
    run_clocks();
  } while (find_edges());
  find_bounds();
}

void Order::index_events() {
  std::map<std::array<std::int64_t, 3>, std::int32_t>
      known;  // line, step, first item; a queue counts as one step
  for (std::size_t i = 0; i < schedule_.segments.size(); ++i) {
    const Segment& s = schedule_.segments[i];
    const bool queue = s.line >= user_line(plan_, plan_.world());
    const auto [at, added] = known.emplace(std::array<std::int64_t, 3>{s.line, queue ? 0 : s.step, s.first},
                                           static_cast<std::int32_t>(instances_.size()));
    // The user has one turn more than there are epochs.
    if (added) instances_.emplace_back(static_cast<std::size_t>(schedule_.epochs) + 1, -1);
    instances_[static_cast<std::size_t>(at->second)][static_cast<std::size_t>(s.epoch)] =
        static_cast<std::int32_t>(i);
    event_of_.push_back(at->second);
  }
  awaited_.resize(instances_.size());
}

/// Takes the adds and awaits of epoch 0: every epoch has the same.
void Order::index_counts() {
  for (const CountHistory& history : schedule_.counts) {
    if (history.awaits.empty()) continue;
    const Counter& counter = plan_.counters[history.at.counter];
    CountPattern& count = counts_.emplace_back();
    count.set = counter.kind == CounterKind::set;
    count.growth = counter.growth[history.at.rank][history.at.entry];
    for (const auto& [from, to] :
         {std::pair{&history.adds, &count.adds}, std::pair{&history.awaits, &count.awaits}})
      for (const Signal& signal : *from)
        if (schedule_.segments[signal.segment].epoch == 0)
          to->push_back({event_of_[signal.segment], signal.amount, signal.at_once, signal.of_parts});
  }
}

bool Order::knows(const Clock& clock, std::int32_t earlier) const {
  budget_.spend(Budget::compared, 8);
  const Segment& s = schedule_.segments[earlier];
  return clock.line(s.line) >= s.seq || clock.has(earlier);
}

bool Order::carries_data(const Event& message) const {
  const Segment& s = schedule_.segments[message.segments[1]];
  return std::get<Exchange>(plan_.ranks[s.rank].lanes[s.lane].steps[s.step])
             .receives[message.receive]
             .slice.rows > 0;
}

/// True if a segment is a command of a copy lane: later steps of the lane may overtake it.
bool Order::overtakes(const Segment& s) const {
  const Lane& lane = plan_.ranks[s.rank].lanes[s.lane];
  return lane.kind == LaneKind::copy && is_command(lane.steps[s.step]);
}

void Order::run_clocks() {
  const auto lines = static_cast<std::size_t>(schedule_.lines);
  const auto nothing =
      std::make_shared<const Clock>(std::make_shared<ClockNodes>(lines, schedule_.segments.size(), budget_));
  clocks_.assign(clocks_.size(), nullptr);
  without_parts_.clear();
  std::vector<std::shared_ptr<const Clock>> now(lines, nothing);  // after the last finished step of each line
  std::vector<Clock> step(lines);  // by line: joined clocks of the runs so far of an unfinished tiled step
  std::vector<std::vector<std::int32_t>> under_way(
      lines);  // by line: commands of a copy lane that no notify has waited for

  const auto shared = [&](Clock clock) {
    budget_.spend(Budget::visited, 1);
    return std::make_shared<const Clock>(std::move(clock));
  };
  // Joins the clock of a segment, and the segment itself.
  const auto learn = [&](Clock& clock, std::int32_t segment) {
    budget_.spend(Budget::visited, 1);
    clock.join(*clocks_[segment]);
    const Segment& s = schedule_.segments[segment];
    if (clock.line(s.line) < s.seq) clock.add(segment);
  };
  const auto finish = [&](const Segment& s, Clock clock) {
    clock.set_line(s.line, s.seq);
    now[s.line] = shared(std::move(clock));
  };

  const auto run_segment = [&](std::int32_t index) {
    const Segment& s = schedule_.segments[index];
    if (s.lane < 0) {  // the user: joins the lanes of the rank, and all lanes continue from here
      Clock clock = *now[s.line];
      for (const std::int32_t line : schedule_.rank_lines[s.rank]) clock.join(*now[line]);
      clocks_[index] = shared(std::move(clock));
      finish(s, *clocks_[index]);
      const auto& lanes = plan_.ranks[s.rank].lanes;
      const auto& lines_of_rank = schedule_.rank_lines[s.rank];
      for (std::size_t l = 0; l < lines_of_rank.size(); ++l) {
        // A prelaunched lane continues as soon as its poll succeeds. It knows of the epoch only what the poll
        // tells.
        if (l < lanes.size() && lanes[l].submission.prelaunched) continue;
        now[lines_of_rank[l]] = now[s.line];
      }
      return;
    }
    const auto& edges = awaited_[event_of_[index]];
    if (edges.empty()) {
      clocks_[index] = now[s.line];
    } else {
      Clock clock = *now[s.line];
      const auto learn_of = [&](bool parts) {
        for (const Edge& edge : edges)
          if (edge.of_parts == parts && edge.lag <= s.epoch)
            learn(clock, instance(edge.add, s.epoch - edge.lag));
      };
      learn_of(false);
      if (std::ranges::any_of(edges, &Edge::of_parts)) {
        without_parts_[index] = shared(clock);
        learn_of(true);
      }
      clocks_[index] = shared(std::move(clock));
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
        // The notify itself also happens after the commands.
        if (!overtakes(s)) clocks_[index] = shared(clock);
        finish(s, std::move(clock));
      } else if (!overtakes(s)) {  // an await: later steps know it, but not the commands before it
        learn(clock, index);
        now[s.line] = shared(std::move(clock));
      }
      return;
    }
    Clock& sofar = step[s.line];
    if (sofar.empty())
      sofar = *clocks_[index];
    else
      sofar.join(*clocks_[index]);
    if (s.closes) finish(s, std::exchange(sofar, {}));
  };

  for (const Event& event : schedule_.events) {
    switch (event.kind) {
      case EventKind::segment:
        run_segment(event.segments[0]);
        break;
      case EventKind::message: {  // later steps of the receiver know what the sender did before
        const Segment& receiver = schedule_.segments[event.segments[1]];
        if (!carries_data(event)) break;
        Clock clock = *now[receiver.line];
        clock.join(*clocks_[event.segments[0]]);
        now[receiver.line] = shared(std::move(clock));
        break;
      }
      case EventKind::collective: {
        for (const std::int32_t s : event.segments) clocks_[s] = now[schedule_.segments[s].line];
        for (const std::int32_t s : event.segments) {
          const Segment& at = schedule_.segments[s];
          const auto& collective = std::get<Collective>(plan_.ranks[at.rank].lanes[at.lane].steps[at.step]);
          Clock clock = *clocks_[s];
          for (std::size_t i = 0; i < event.segments.size(); ++i)
            if (receives_of(collective, i)) clock.join(*clocks_[event.segments[i]]);
          finish(at, std::move(clock));
        }
        break;
      }
    }
  }
}

/// Smallest number of epochs after which `event` knows `earlier`; `never` if this run is too short to tell.
/// It holds from every epoch on, because all edges do.
std::int32_t Order::lag(std::int32_t event, std::int32_t earlier) const {
  for (std::int32_t epoch = 0; epoch < schedule_.epochs; ++epoch)
    if (knows(instance(event, epoch), instance(earlier, 0))) return epoch;
  return never;
}

/// Lag of each add to a count behind an event.
std::vector<std::int32_t> Order::lags_of_adds(const CountPattern& count, std::int32_t event) {
  std::vector<std::int32_t> lags;
  lags.reserve(count.adds.size());
  for (const auto& add : count.adds) lags.push_back(lag(add.event, event));
  budget_.spend(Budget::compared, static_cast<std::int64_t>(count.adds.size()));
  return lags;
}

namespace {

/// True if the await of any epoch e needs add number `index` of epoch e − lag. So it does if the count stays
/// below the target without that add and without all that happens after the add or after the await.
///
/// `after_await` and `after_add` are lags, by add. Adds that may have happened belong to epochs before e +
/// after_await and before e − lag + after_add. Values are relative to the count at the start of epoch e.
bool certain(const CountPattern& count, std::int64_t target, std::size_t index, std::int32_t lag,
             const std::vector<std::int32_t>& after_await, const std::vector<std::int32_t>& after_add) {
  const CountPattern::Entry& add = count.adds[index];
  if (after_await[index] <= -lag) return false;  // the add comes after the await
  // Covers the first epochs too: if e − lag is epoch 0, nothing has been added or set before.
  std::int64_t without = count.set ? -lag * count.growth : -add.at_once;
  for (std::size_t i = 0; i < count.adds.size(); ++i) {
    if (after_await[i] == never && after_add[i] == never) return false;
    std::int64_t epochs = std::min<std::int64_t>(after_await[i], std::int64_t{after_add[i]} - lag);
    if (!count.set) {
      without += count.adds[i].amount * epochs;
    } else {
      if (i == index) epochs = std::min<std::int64_t>(epochs, -lag);
      without = std::max(without, count.adds[i].amount + (epochs - 1) * count.growth);
    }
  }
  return without < target;
}

}  // namespace

bool Order::find_edges(const CountPattern& count) {
  bool grown = false;
  std::vector<std::vector<std::int32_t>> after_add(count.adds.size());
  const auto bytes_of_lags = static_cast<std::int64_t>(count.adds.size() * sizeof(std::int32_t));
  std::int64_t held_bytes = 0;
  for (const auto& await : count.awaits) {
    auto& edges = awaited_[await.event];
    const std::vector<std::int32_t> after_await = lags_of_adds(count, await.event);
    for (std::size_t i = 0; i < count.adds.size(); ++i) {
      const std::int32_t add = count.adds[i].event;
      const auto edge = std::find_if(edges.begin(), edges.end(), [&](const Edge& e) {
        return e.add == add && e.of_parts == await.of_parts;
      });
      const std::int32_t worst = edge == edges.end() ? longest_lag_ + 1 : edge->lag;
      if (after_add[i].empty() && worst > 0) {
        budget_.keep(Budget::lags, bytes_of_lags);
        held_bytes += bytes_of_lags;
        after_add[i] = lags_of_adds(count, add);
      }
      for (std::int32_t lag = 0; lag < worst; ++lag) {
        budget_.spend(Budget::compared, static_cast<std::int64_t>(count.adds.size()));
        if (!certain(count, await.amount, i, lag, after_await, after_add[i])) continue;
        if (edge == edges.end())
          edges.push_back({add, lag, await.of_parts});
        else
          edge->lag = lag;
        grown = true;
        break;
      }
    }
  }
  budget_.release(Budget::lags, held_bytes);
  return grown;
}

bool Order::find_edges() {
  bool grown = false;
  for (const CountPattern& count : counts_) grown |= find_edges(count);
  return grown;
}

/// Lines from which a line gets signals, directly or not, after any number of epochs.
std::vector<bool> Order::lines_heard_by(std::int32_t line) const {
  budget_.spend(Budget::compared, static_cast<std::int64_t>(schedule_.events.size() + awaited_.size()));
  std::vector<std::vector<std::int32_t>> sources(static_cast<std::size_t>(schedule_.lines));
  for (std::size_t rank = 0; rank < schedule_.rank_lines.size(); ++rank) {
    const std::int32_t user = user_line(plan_, static_cast<int>(rank));
    const auto& lanes = plan_.ranks[rank].lanes;
    for (std::size_t l = 0; l < schedule_.rank_lines[rank].size(); ++l) {
      const std::int32_t own = schedule_.rank_lines[rank][l];
      sources[user].push_back(own);
      if (l >= lanes.size() || !lanes[l].submission.prelaunched) sources[own].push_back(user);
    }
  }
  for (std::size_t event = 0; event < awaited_.size(); ++event)
    for (const Edge& edge : awaited_[event])
      sources[line_of(static_cast<std::int32_t>(event))].push_back(line_of(edge.add));
  for (const Event& event : schedule_.events) {
    if (event.kind == EventKind::segment || schedule_.segments[event.segments[0]].epoch > 0) continue;
    if (event.kind == EventKind::message && !carries_data(event)) continue;
    for (const std::int32_t to : event.segments) {
      const Segment& s = schedule_.segments[to];
      if (event.kind == EventKind::message && to == event.segments[0]) continue;
      budget_.spend(Budget::tried, static_cast<std::int64_t>(event.segments.size()));
      for (std::size_t i = 0; i < event.segments.size(); ++i)
        if (event.kind == EventKind::message ||
            receives_of(std::get<Collective>(plan_.ranks[s.rank].lanes[s.lane].steps[s.step]), i))
          sources[s.line].push_back(schedule_.segments[event.segments[i]].line);
    }
  }
  std::vector<bool> heard(sources.size(), false);
  std::vector<std::int32_t> open{line};
  heard[line] = true;
  while (!open.empty()) {
    const std::int32_t at = open.back();
    open.pop_back();
    for (const std::int32_t source : sources[at])
      if (!heard[source]) heard[source] = true, open.push_back(source);
  }
  return heard;
}

/// A lag that this run does not show either does not exist or is longer than the run. It exists if the line
/// of the later event gets signals from the line of the earlier one.
void Order::find_bounds() {
  std::map<std::int32_t, std::vector<bool>> heard;
  const auto hears = [&](std::int32_t event, std::int32_t earlier) {
    const auto [at, added] = heard.try_emplace(line_of(event));
    if (added) at->second = lines_heard_by(at->first);
    return static_cast<bool>(at->second[line_of(earlier)]);
  };
  for (const CountPattern& count : counts_)
    for (const auto& add : count.adds) {
      for (const auto& await : count.awaits) {
        const std::int32_t ahead = lag(add.event, await.event);
        if (ahead < never)
          most_ahead_ = std::max(most_ahead_, ahead);
        else if (hears(add.event, await.event))
          needs_more_ = true;
        else if (unbounded_ < 0)
          unbounded_ = instance(add.event, 0);
      }
      for (const auto& other : count.adds) {
        if (needs_more_) break;
        needs_more_ = lag(other.event, add.event) == never && hears(other.event, add.event);
      }
    }
}

std::int32_t Order::skew() const {
  std::set<std::int32_t> lines;
  for (int rank = 0; rank < plan_.world(); ++rank) lines.insert(user_line(plan_, rank));
  std::vector<std::int32_t> users;
  for (std::size_t event = 0; event < instances_.size(); ++event)
    if (lines.contains(line_of(static_cast<std::int32_t>(event))))
      users.push_back(static_cast<std::int32_t>(event));
  budget_.spend(Budget::compared, static_cast<std::int64_t>(instances_.size() + users.size() * users.size()) *
                                      schedule_.epochs);
  std::int32_t most = 0;
  for (const std::int32_t user : users)
    for (const std::int32_t other : users) {
      if (user == other) continue;
      std::int32_t epochs = 0;
      while (epochs <= schedule_.epochs && !knows(instance(user, epochs), instance(other, 0))) ++epochs;
      if (epochs > schedule_.epochs) return -1;
      most = std::max(most, epochs);
    }
  return most;
}

}  // namespace shingle
