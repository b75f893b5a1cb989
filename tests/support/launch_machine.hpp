// Streams of a LaunchProgram in one interleaving after another, beside the counts of the plan that it lowers.
#pragma once

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "lower/launch_program.hpp"
#include "plan/steps.hpp"
#include "random_problem.hpp"

namespace shingle::test {

/// Runs epochs of a program as GPUs would: the launches of a stream in turn, those of different streams in
/// any order. An event holds back a stream only if its record was issued before the wait. All notifies count,
/// also those that became events, so that each await of the plan can be checked when its stream passes it.
class LaunchMachine {
 public:
  LaunchMachine(const Plan& plan, const LaunchProgram& program, std::uint64_t seed)
      : plan_(plan), program_(program), dice_(seed) {}

  /// Returns what went wrong in the order that the seed chose: an await that was passed too early, a step
  /// that was left out, or a stop. Empty: nothing.
  std::string run(int epochs) {
    for (epoch_ = 0; epoch_ < epochs && wrong_.empty(); ++epoch_) {
      begin_epoch();
      while (wrong_.empty() && !streams_.empty()) {
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < streams_.size(); ++i)
          order.insert(order.begin() + dice_.size(0, static_cast<std::int64_t>(i)), i);
        const bool moved = std::ranges::any_of(order, [&](std::size_t i) { return advance(streams_[i]); });
        if (!moved && wrong_.empty()) wrong_ = stop();
        std::erase_if(streams_, [](const Stream& stream) { return stream.at == stream.launches.size(); });
      }
      require_all_steps();
    }
    return wrong_;
  }

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // counter, rank, entry
  struct Stream {
    std::int32_t rank = 0, lane = 0;
    std::vector<const Launch*> launches;
    std::size_t at = 0, part = 0;
    std::int64_t item = -1;  // of the kernel that runs
    bool entered = false;    // its collective
  };

  void begin_epoch() {
    recorded_.clear(), done_.clear(), claimed_.clear(), calls_.clear();
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      std::map<std::int32_t, Stream> lanes;
      std::set<std::int32_t> issued;  // events
      for (const Launch& launch : program_.ranks[rank].launches) {
        Stream& stream = lanes[launch.stream];
        stream.rank = static_cast<std::int32_t>(rank), stream.lane = launch.stream;
        stream.launches.push_back(&launch);
        if (launch.kind == LaunchKind::record) issued.insert(launch.event);
        // A wait whose record is not issued yet waits for nothing.
        if (launch.kind == LaunchKind::wait && !issued.contains(launch.event))
          recorded_.insert({stream.rank, launch.event});
        for (const LaunchPart& part : launch.parts)
          if (part.event >= 0 && !issued.contains(part.event)) recorded_.insert({stream.rank, part.event});
      }
      for (auto& [lane, stream] : lanes) streams_.push_back(std::move(stream));
    }
  }

  const Step& step(const Stream& stream, std::int32_t index) const {
    return plan_.ranks[static_cast<std::size_t>(stream.rank)]
        .lanes[static_cast<std::size_t>(stream.lane)]
        .steps[static_cast<std::size_t>(index)];
  }
  std::int64_t base(const CounterRef& at) const {
    return std::int64_t{epoch_} *
           plan_.counters[static_cast<std::size_t>(at.counter)]
               .growth[static_cast<std::size_t>(at.rank)][static_cast<std::size_t>(at.entry)];
  }
  bool reached(const CounterRef& at, std::uint32_t target) {
    return counts_[{at.counter, at.rank, at.entry}] >= base(at) + target;
  }
  void notify(const CounterRef& at, std::int64_t value) {
    std::int64_t& count = counts_[{at.counter, at.rank, at.entry}];
    const bool sets = plan_.counters[static_cast<std::size_t>(at.counter)].kind == CounterKind::set;
    count = sets ? std::max(count, base(at) + value) : count + value;
  }
  void require(const CounterRef& at, std::uint32_t target, const Stream& stream) {
    if (!reached(at, target) && wrong_.empty())
      wrong_ = fmt::format("rank {}, stream {}: passed its await of {}[{}] too early", stream.rank,
                           stream.lane, plan_.counters[static_cast<std::size_t>(at.counter)].name, at.entry);
  }

  /// One launch, or one part or run of items of it, if it may go on.
  bool advance(Stream& stream) {
    const Launch& launch = *stream.launches[stream.at];
    const Step& first = step(stream, launch.first);
    switch (launch.kind) {
      case LaunchKind::sync:
      case LaunchKind::flags:
      case LaunchKind::host:
        return synchronise(stream, launch);
      case LaunchKind::record:
        notify(std::get<Notify>(first).counter, std::get<Notify>(first).value);
        recorded_.insert({stream.rank, launch.event});
        return next(stream);
      case LaunchKind::wait:
        if (!recorded_.contains({stream.rank, launch.event})) return false;
        require(std::get<Await>(first).counter, std::get<Await>(first).target, stream);
        return next(stream);
      case LaunchKind::library:
        return meet(stream, first);
      case LaunchKind::copy:
        return next(stream);
      case LaunchKind::kernel:
        return launch.parts.empty() ? compute(stream, first) : compute_part(stream, launch);
      case LaunchKind::delivery:
        return deliver(stream, launch);
    }
    return false;
  }

  bool next(Stream& stream) {
    const Launch& launch = *stream.launches[stream.at];
    for (std::int32_t i = launch.first; i < launch.last; ++i) done_.insert({stream.rank, stream.lane, i});
    ++stream.at;
    stream.part = 0, stream.item = -1, stream.entered = false;
    return true;
  }

  bool synchronise(Stream& stream, const Launch& launch) {
    if (stream.item < 0) stream.item = launch.first;
    bool moved = false;
    for (; stream.item < launch.last; ++stream.item, moved = true) {
      const Step& one = step(stream, static_cast<std::int32_t>(stream.item));
      if (const auto* await = std::get_if<Await>(&one)) {
        if (!reached(await->counter, await->target)) return moved;
      } else {
        notify(std::get<Notify>(one).counter, std::get<Notify>(one).value);
      }
    }
    return next(stream);
  }

  /// One kernel carries out the steps: a count, or an item of a pass, at a time.
  bool deliver(Stream& stream, const Launch& launch) {
    const auto index = launch.first + static_cast<std::int32_t>(stream.part);
    if (index == launch.last) return next(stream);
    const Step& one = step(stream, index);
    if (const auto* await = std::get_if<Await>(&one)) {
      if (!reached(await->counter, await->target)) return false;
    } else if (const auto* at = std::get_if<Notify>(&one)) {
      notify(at->counter, at->value);
    } else {
      const auto& pass = std::get<Elementwise>(one);
      if (stream.item < 0) stream.item = pass.first;
      if (stream.item < last_item(pass)) {
        if (!gates_open(stream, one, stream.item)) return false;
        if (!row_wise(pass)) count_tiles(stream, one, stream.item, stream.item + 1);
        ++stream.item;
        return true;
      }
    }
    ++stream.part;
    stream.item = -1;
    return true;
  }

  /// Collectives meet by communicator and number; messages go by themselves here.
  bool meet(Stream& stream, const Step& one) {
    const auto* collective = std::get_if<Collective>(&one);
    if (!collective) return next(stream);
    auto& calls = calls_[collective->communicator];
    const auto& ranks = plan_.communicators[static_cast<std::size_t>(collective->communicator)].ranks;
    if (!stream.entered) {
      ++calls[stream.rank];
      stream.entered = true;
    }
    for (const std::int32_t rank : ranks)
      if (calls[rank] < calls[stream.rank]) return false;
    return next(stream);
  }

  /// Tiles of items [first, last) have been stored.
  void count_tiles(const Stream& stream, const Step& one, std::int64_t first, std::int64_t last) {
    const TileGrid& grid = *grid_of(one);
    for (const TileNotify& hook : *notifies_of(one))
      for (std::int64_t at = first; at < last; ++at)
        if (!grid.phantom(grid.tile(at))) {
          const auto group = group_of(hook.ends, at);
          hook.for_each_rank(group,
                             [&](std::int32_t rank) { notify({hook.counter, rank, hook.entry(group)}, 1); });
        }
    static_cast<void>(stream);
  }

  bool gates_open(const Stream& stream, const Step& one, std::int64_t item) {
    const TileGrid& grid = *grid_of(one);
    const auto* pass = std::get_if<Elementwise>(&one);
    if (!(pass && row_wise(*pass)) && grid.phantom(grid.tile(item))) return true;
    return std::ranges::all_of(*gates_of(one), [&](const TileGate& gate) {
      const auto group = group_of(gate.ends, item);
      return reached({gate.counter, stream.rank, gate.entry(group)},
                     gate.targets[static_cast<std::size_t>(group)]);
    });
  }

  bool compute(Stream& stream, const Step& one) {
    const auto* pass = std::get_if<Elementwise>(&one);
    const std::int64_t begin = pass ? pass->first : 0,
                       end = pass ? last_item(*pass) : grid_of(one)->positions();
    const bool shared = pass && pass->queue >= 0;
    std::int64_t& item =
        shared ? claimed_.try_emplace({stream.rank, pass->queue}, begin).first->second : stream.item;
    if (item < 0) item = begin;
    if (item >= end) return next(stream);
    if (!gates_open(stream, one, item)) return false;
    if (!(pass && row_wise(*pass))) count_tiles(stream, one, item, item + 1);
    ++item;
    return true;
  }

  bool compute_part(Stream& stream, const Launch& launch) {
    if (stream.part == launch.parts.size()) return next(stream);
    const LaunchPart& part = launch.parts[stream.part];
    if (part.event >= 0 ? !recorded_.contains({stream.rank, part.event})
                        : !reached(part.counter, part.target))
      return false;
    for (std::int32_t i = launch.first; i < launch.last; ++i) {
      const Step& one = step(stream, i);
      const auto& pass = std::get<Elementwise>(one);
      for (std::int64_t item = part.first; item < part.last; ++item) {
        const TileGate& gate = pass.gates.front();
        const auto group = group_of(gate.ends, item);
        if (row_wise(pass) || !pass.grid.phantom(pass.grid.tile(item)))
          require({gate.counter, stream.rank, gate.entry(group)},
                  gate.targets[static_cast<std::size_t>(group)], stream);
      }
      if (!row_wise(pass)) count_tiles(stream, one, part.first, part.last);
    }
    ++stream.part;
    return true;
  }

  /// Steps without tiles need no launch.
  void require_all_steps() {
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank)
      for (std::size_t lane = 0; lane < plan_.ranks[rank].lanes.size(); ++lane) {
        const auto& steps = plan_.ranks[rank].lanes[lane].steps;
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const auto* pass = std::get_if<Elementwise>(&steps[i]);
          if (pass && by_groups(*pass) && awaited_groups(*pass).empty()) continue;
          if (wrong_.empty() &&
              !done_.contains({static_cast<std::int32_t>(rank), static_cast<std::int32_t>(lane),
                               static_cast<std::int32_t>(i)}))
            wrong_ = fmt::format("rank {}, lane {}: step {} was left out", rank, lane, i);
        }
      }
  }

  std::string stop() const {
    std::string text = "stopped:";
    for (const Stream& stream : streams_)
      text += fmt::format(" rank {} stream {} at step {};", stream.rank, stream.lane,
                          stream.launches[stream.at]->first);
    return text;
  }

  const Plan& plan_;
  const LaunchProgram& program_;
  Dice dice_;
  int epoch_ = 0;
  std::vector<Stream> streams_;
  std::map<Key, std::int64_t> counts_;
  std::set<std::pair<std::int32_t, std::int32_t>> recorded_;               // rank, event
  std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> done_;    // rank, lane, step
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> claimed_;  // rank, queue → next item
  std::map<std::int32_t, std::map<std::int32_t, int>> calls_;              // communicator → rank → calls
  std::string wrong_;
};

}  // namespace shingle::test
