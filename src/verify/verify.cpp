// Runs the rules of the proof, each of which builds on the earlier ones. docs/concepts/proofs.md argues why
// they are sufficient.
#include "shingle/verify/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "shingle/plan/print.hpp"
#include "shingle/verify/wellformed.hpp"
#include "verify/memory/check.hpp"
#include "verify/order/order.hpp"
#include "verify/progress/schedule.hpp"
#include "verify/residency.hpp"

namespace shingle {
namespace {

using Failure = std::optional<std::string>;

/// Max number of epochs to unroll. A plan is refused if its ranks may be further apart.
constexpr std::int32_t max_epochs = 256;

/// The communicator of a rendezvous, or -1.
std::int32_t communicator_of(const Step& step) {
  if (const auto* collective = std::get_if<Collective>(&step)) return collective->communicator;
  if (const auto* exchange = std::get_if<Exchange>(&step)) return exchange->communicator;
  return -1;
}

/// Rule 3, the static part: on each rank one lane uses a communicator.
Failure check_collectives(const Plan& plan) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    std::map<std::int32_t, const Lane*> lane_of;
    for (const Lane& lane : plan.ranks[r].lanes)
      for (const Step& step : lane.steps) {
        const std::int32_t communicator = communicator_of(step);
        if (communicator < 0) continue;
        const Lane* other = lane_of.emplace(communicator, &lane).first->second;
        if (other != &lane)
          return fmt::format(
              "rank {}: lanes {} and {} both use communicator {}; one lane of a rank may use it", r,
              other->name, lane.name, plan.communicators[communicator].name);
      }
  }
  return std::nullopt;
}

/// Rule 3 with several communicators: there is one order of all their calls that the issue order of every
/// rank follows. The run tells which exchanges match.
Failure check_global_order(const Plan& plan, const Schedule& schedule) {
  // Union-find: segments that meet in a call, directly or not, have the lowest of their indices as node.
  std::vector<std::int32_t> node(schedule.segments.size());
  for (std::size_t i = 0; i < node.size(); ++i) node[i] = static_cast<std::int32_t>(i);
  const auto find = [&](std::int32_t s) {
    while (node[s] != s) s = node[s] = node[node[s]];
    return s;
  };
  for (const Event& event : schedule.events)
    for (const std::int32_t other : event.segments) {
      const std::int32_t a = find(event.segments[0]), b = find(other);
      node[std::max(a, b)] = std::min(a, b);
    }
  std::map<std::array<std::int32_t, 3>, std::int32_t> segment_of;  // rank, lane, step → segment of epoch 0
  std::set<std::int32_t> used;
  for (std::size_t i = 0; i < node.size(); ++i) {
    const Segment& s = schedule.segments[i];
    if (s.lane < 0 || s.epoch > 0) continue;
    const std::int32_t communicator = communicator_of(plan.ranks[s.rank].lanes[s.lane].steps[s.step]);
    if (communicator < 0) continue;
    segment_of[{s.rank, s.lane, s.step}] = static_cast<std::int32_t>(i);
    used.insert(communicator);
  }
  if (used.size() < 2) return std::nullopt;  // calls of one communicator are ordered by their rendezvous

  std::map<std::int32_t, std::vector<std::int32_t>> next;
  std::map<std::int32_t, int> before;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    std::vector<std::int32_t> at(plan.ranks[r].lanes.size(), 0);
    std::int32_t last = -1;
    for (const std::int32_t lane : plan.ranks[r].issue) {
      const auto found = segment_of.find({static_cast<std::int32_t>(r), lane, at[lane]++});
      if (found == segment_of.end()) continue;
      const std::int32_t call = find(found->second);
      before.emplace(call, 0);
      if (last >= 0 && last != call) {
        next[last].push_back(call);
        ++before[call];
      }
      last = call;
    }
  }
  std::vector<std::int32_t> ready;
  for (const auto& [call, count] : before)
    if (count == 0) ready.push_back(call);
  for (std::size_t i = 0; i < ready.size(); ++i)
    for (const std::int32_t other : next[ready[i]])
      if (--before[other] == 0) ready.push_back(other);
  for (const auto& [call, count] : before) {
    if (count == 0) continue;
    const Segment& s = schedule.segments[call];
    return fmt::format(
        "ranks disagree on the order of calls on several communicators: {} is issued before other calls on "
        "one rank, after them on another",
        where(plan, s.rank, s.lane, s.step));
  }
  return std::nullopt;
}

/// Rule 6: each count grows by its declared growth in every epoch, and no target exceeds it. A `set` counter
/// has one writer and never falls. So targets stay within the range of a cyclic comparison.
Failure check_counters(const Plan& plan, const Schedule& schedule) {
  std::size_t index = 0;
  for (const Counter& counter : plan.counters)
    for (std::size_t rank = 0; rank < counter.growth.size(); ++rank)
      for (std::size_t entry = 0; entry < counter.growth[rank].size(); ++entry)
        if (schedule.counts[index++].at.counter < 0 && counter.growth[rank][entry] != 0)
          return fmt::format(
              "counter {}[{}] on rank {} declares a growth of {} an epoch, but no step adds to it",
              counter.name, entry, rank, counter.growth[rank][entry]);
  for (const CountHistory& count : schedule.counts) {
    if (count.at.counter < 0) continue;  // never used
    const Counter& counter = plan.counters[count.at.counter];
    const std::int64_t growth = counter.growth[count.at.rank][count.at.entry];
    const std::string name =
        fmt::format("counter {}[{}] on rank {}", counter.name, count.at.entry, count.at.rank);
    std::vector<std::int64_t> grown(schedule.epochs, 0);
    const Segment* writer = nullptr;
    std::int64_t value = 0;
    for (const Signal& add : count.adds) {
      const Segment& s = schedule.segments[add.segment];
      if (counter.kind == CounterKind::add) {
        grown[s.epoch] += add.amount;
        continue;
      }
      grown[s.epoch] = std::max(grown[s.epoch], add.amount - s.epoch * growth);
      if (writer && writer->line != s.line)
        return fmt::format("{} is set by {} and by {}: a set counter has one writer", name,
                           where(plan, writer->rank, writer->lane, writer->step),
                           where(plan, s.rank, s.lane, s.step));
      if (writer && add.amount < value)
        return fmt::format("{} is set back by {}, from {} to {}: a set counter never falls", name,
                           where(plan, s.rank, s.lane, s.step), value - s.epoch * growth,
                           add.amount - s.epoch * growth);
      writer = &s;
      value = add.amount;
    }
    for (const std::int64_t sum : grown)
      if (sum != growth)
        return fmt::format("{} declares a growth of {} an epoch, but its steps add {}", name, growth, sum);
    for (const Signal& await : count.awaits) {
      const Segment& s = schedule.segments[await.segment];
      if (await.amount - s.epoch * growth > growth)
        return fmt::format("{} awaits {} of {}, which grows by {} an epoch",
                           where(plan, s.rank, s.lane, s.step), await.amount - s.epoch * growth, name,
                           growth);
    }
  }
  return std::nullopt;
}

Proof failed(std::string rule, std::string failure) {
  Proof proof;
  proof.ok = false;
  proof.rule = std::move(rule);
  proof.failure = std::move(failure);
  return proof;
}

/// Rule 6: an await and the adds that are ahead of it differ by less than 2^31, so that counts stay
/// comparable.
Failure check_range(const Plan& plan, std::int32_t ahead) {
  for (const Counter& counter : plan.counters)
    for (std::size_t rank = 0; rank < counter.growth.size(); ++rank)
      for (std::size_t entry = 0; entry < counter.growth[rank].size(); ++entry)
        if (const std::int64_t most = ((std::int64_t{1} << 31) - 1) / (std::int64_t{ahead} + 1);
            counter.growth[rank][entry] > most)
          return fmt::format("counter {}[{}] on rank {} grows by {} an epoch; its 32 bits allow {}",
                             counter.name, entry, rank, counter.growth[rank][entry], most);
  return std::nullopt;
}

/// The plan counts as memory of its proof.
std::int64_t bytes_of_steps(const Plan& plan) {
  std::int64_t steps = 0;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes) steps += static_cast<std::int64_t>(lane.steps.size());
  return steps * static_cast<std::int64_t>(sizeof(Step));
}

/// The first step of a lane that counts a begin too late; -1 if there is none. A backend counts a begin where
/// the rank begins the call, so nothing may precede these steps.
std::ptrdiff_t late_begin(const Plan& plan, const RankPlan& rank, const Lane& lane) {
  const auto counts_begin = [&](const Step& step) {
    const auto* const notify = std::get_if<Notify>(&step);
    return notify && plan.counters[static_cast<std::size_t>(notify->counter.counter)].of_begins;
  };
  const auto first =
      &lane == &rank.lanes.front() ? std::ranges::find_if_not(lane.steps, counts_begin) : lane.steps.begin();
  const auto late = std::find_if(first, lane.steps.end(), counts_begin);
  return late == lane.steps.end() ? -1 : late - lane.steps.begin();
}

/// A context computes the addresses in its arena before the call, and has no commands that begin before it.
Failure check_context(const Plan& plan) {
  for (const Buffer& buffer : plan.buffers)
    if (buffer.depth != 1 && !buffer.flagged)
      return fmt::format("buffer {} has {} copies for successive epochs; a context's arena has one",
                         buffer.name, buffer.depth);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Lane& lane : plan.ranks[r].lanes)
      if (lane.submission.prelaunched)
        return fmt::format("rank {}: lane {} is prelaunched, so it may begin before the call", r, lane.name);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r)
    for (std::size_t l = 0; l < plan.ranks[r].lanes.size(); ++l)
      if (const auto step = late_begin(plan, plan.ranks[r], plan.ranks[r].lanes[l]); step >= 0)
        return fmt::format("{} counts the begin of the call, but is not among the first steps of lane {}",
                           where(plan, static_cast<std::int32_t>(r), static_cast<std::int32_t>(l),
                                 static_cast<std::int32_t>(step)),
                           plan.ranks[r].lanes.front().name);
  return std::nullopt;
}

/// In a context all calls use the same counts, which are zero between a rank's calls. So every add must come
/// after the rank that holds the count has begun the epoch, and before it ends it. Counts of begins are the
/// exception; an entry grows by one, by the rank that it stands for. So are counts of arrivals.
Failure check_counts_in_context(const Plan& plan, const Schedule& schedule, const Order& order) {
  constexpr std::int32_t epoch = 1;
  std::vector<std::array<std::int32_t, 3>> turns(static_cast<std::size_t>(plan.world()));
  for (std::size_t i = 0; i < schedule.segments.size(); ++i) {
    const Segment& s = schedule.segments[i];
    if (s.lane < 0 && s.epoch >= epoch - 1 && s.epoch <= epoch + 1)
      turns[static_cast<std::size_t>(s.rank)][static_cast<std::size_t>(s.epoch - epoch + 1)] =
          static_cast<std::int32_t>(i);
  }
  for (const CountHistory& count : schedule.counts) {
    if (count.at.counter < 0) continue;
    const Counter& counter = plan.counters[count.at.counter];
    const auto [before, begin, end] = turns[static_cast<std::size_t>(count.at.rank)];
    for (const Signal& add : count.adds) {
      const Segment& s = schedule.segments[add.segment];
      if (s.epoch != epoch) continue;
      if (counter.of_begins) {
        if (counter.kind != CounterKind::add || add.amount != 1 || s.rank != count.at.entry)
          return fmt::format(
              "{} adds {} to {}[{}] of rank {}; expected 1, by rank {}, as entries count begins",
              where(plan, s.rank, s.lane, s.step), add.amount, counter.name, count.at.entry, count.at.rank,
              count.at.entry);
        continue;
      }
      if (counter.of_arrivals) {
        // The rank clears the words of an epoch in the next one, and they count again two epochs later. What
        // arrived after the end of its own epoch could come after the clearing.
        const bool early = !order.knows(add.segment, before), late = !order.knows(end, add.segment);
        if (early || late)
          return fmt::format("{} may add to {}[{}] of rank {} {}", where(plan, s.rank, s.lane, s.step),
                             counter.name, count.at.entry, count.at.rank,
                             early ? "before the rank has cleared what arrived two epochs before"
                                   : "after the rank has ended the call");
        continue;
      }
      const bool early = !order.knows(add.segment, begin), late = !order.knows(end, add.segment);
      if (early || late)
        return fmt::format(
            "{} may add to {}[{}] of rank {} {}", where(plan, s.rank, s.lane, s.step), counter.name,
            count.at.entry, count.at.rank,
            early ? "before the rank has begun the call" : "after the rank has ended the call");
    }
  }
  return std::nullopt;
}

Proof prove(const Plan& plan, Setting setting, Budget& budget) {
  budget.keep(Budget::steps, bytes_of_steps(plan));
  if (auto wrong = malformed(plan)) return failed("well-formed", *wrong);
  if (is_symmetric(plan))
    return failed(
        "symmetry",
        fmt::format("{} ranks stand for all {}; a proof needs a plan of every rank, of at most {} ranks",
                    plan.ranks.size(), plan.world(), max_world));
  if (plan.world() > max_world)
    return failed("size",
                  fmt::format("the plan has {} ranks; at most {} can be proven", plan.world(), max_world));
  if (auto wrong = unresident(plan)) return failed("residency", *wrong);
  if (auto wrong = check_collectives(plan)) return failed("collectives", *wrong);
  if (setting == Setting::context)
    if (auto wrong = check_context(plan)) return failed("context", *wrong);
  std::int32_t depth = 1;
  for (const Buffer& buffer : plan.buffers) depth = std::max(depth, buffer.depth);

  Schedule schedule = run_greedily(plan, depth + 2, false, &budget);
  if (!schedule.mismatch.empty()) return failed("collectives", schedule.mismatch);
  if (auto wrong = check_counters(plan, schedule); wrong && schedule.stuck.empty())
    return failed("counters", *wrong);
  if (!schedule.stuck.empty()) return failed("progress", schedule.stuck);
  if (const Schedule queued = run_greedily(plan, depth + 2, true, &budget); !queued.stuck.empty())
    return failed("hardware queue", queued.stuck);
  if (auto wrong = check_global_order(plan, schedule)) return failed("collectives", *wrong);

  // A buffer is reused after `depth` epochs, so depth + 2 epochs show every race. They also show how far a
  // step may run ahead of an await. The exception is a chain of ranks in which each is an epoch behind the
  // previous one.
  std::optional<Order> order;
  order.emplace(plan, schedule, setting, budget);
  while (order->needs_more_epochs()) {
    if (schedule.epochs * 2 > max_epochs)
      return failed("size", fmt::format("ranks may be more than {} epochs apart, too far for a proof; let "
                                        "them await each other more often",
                                        schedule.epochs - 1));
    const std::int32_t epochs = schedule.epochs * 2;
    order.reset();
    schedule = {};
    budget.release_all(Budget::schedule);
    schedule = run_greedily(plan, epochs, false, &budget);
    order.emplace(plan, schedule, setting, budget);
  }
  if (auto wrong = check_range(plan, std::max(order->most_ahead(), 1))) return failed("counters", *wrong);
  MemoryCheck memory(plan, schedule, *order, setting, budget);
  if (auto wrong = memory.run()) return failed(wrong->rule, wrong->text);
  if (setting == Setting::context)
    if (auto wrong = check_counts_in_context(plan, schedule, *order)) return failed("context", *wrong);
  if (const std::int32_t adder = order->unbounded(); adder >= 0) {
    const Segment& s = schedule.segments[adder];
    return failed("counters", fmt::format("{} may run any number of epochs ahead of an await of its counter; "
                                          "nothing makes it wait for that rank",
                                          where(plan, s.rank, s.lane, s.step)));
  }
  Proof proof;
  proof.segments = static_cast<std::int64_t>(schedule.segments.size());
  proof.accesses = memory.accesses();
  proof.epochs = schedule.epochs;
  proof.skew = order->skew();
  return proof;
}

}  // namespace

Proof verify(const Plan& plan, Setting setting) {
  Budget budget;
  Proof proof;
  try {
    proof = prove(plan, setting, budget);
  } catch (const TooLarge& refused) {
    proof = failed("size", refused.text);
  }
  proof.work = budget.spent();
  return proof;
}

}  // namespace shingle
