// Communication: messages, and the commands of copy engines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "shingle/base/error.hpp"
#include "simulation.hpp"

namespace shingle::sim {

bool Simulation::exchange(LaneState& lane, const Exchange& step) {
  if (!lane.launched) {
    lane.launched = true;
    lane.messages = static_cast<std::int32_t>(step.sends.size() + step.receives.size());
    const Index self = lane_index(lane.rank, lane.lane);
    for (const auto& message : step.sends) {
      Posted& posted = posted_[planned(lane.rank, message.peer)];
      posted.sends.push_back(self);
      posted.bytes.push_back(costs_.bytes_of(message.slice));
    }
    for (const auto& message : step.receives)
      posted_[planned(message.peer, lane.rank)].receives.push_back(self);
    for (const auto& message : step.sends) match(planned(lane.rank, message.peer), self);
    for (const auto& message : step.receives) match(planned(message.peer, lane.rank), self);
  }
  return !blocked(lane);
}

/// Maps two ranks to their representatives: an equivalent pair whose first rank is planned.
std::pair<Index, Index> Simulation::planned(Index from, Index to) const {
  const auto ranks = static_cast<Index>(plan_.ranks.size());
  const Index first = from % ranks, world = plan_.world();
  return {first, (to - from + first + world) % world};
}

/// Channel that bounds the messages that a lane sends now, by its workers' rate. none: only links bound them.
Channel Simulation::sender(Index index) {
  const LaneState& lane = lanes_[static_cast<std::size_t>(index)];
  const std::int32_t workers = std::get<Exchange>(lane_plan(lane).steps[lane.step]).resources.least;
  const auto [at, made] = senders_.try_emplace({index, workers}, none);
  if (made)
    if (const double gbps = costs_.message_gbps(workers); gbps > 0) at->second = links_.add_channel(gbps);
  return at->second;
}

/// Starts messages that both ends have posted.
void Simulation::match(std::pair<Index, Index> ends, Index current) {
  Posted& posted = posted_[ends];
  while (posted.matched < std::min(posted.sends.size(), posted.receives.size())) {
    const std::size_t i = posted.matched++;
    const Index sender_lane = posted.sends[i], receiver = posted.receives[i];
    // The end that came last caused the wait of the other.
    for (const Index end : {sender_lane, receiver})
      if (end != current)
        lanes_[static_cast<std::size_t>(end)].cause = lanes_[static_cast<std::size_t>(current)].cause;
    if (machine_.topology.serial) {
      message_over(sender_lane);
      message_over(receiver);
    } else {
      transfer({Transfer::Of::message, sender_lane, receiver, 0}, posted.bytes[i], ends.first, ends.second,
               none, sender(sender_lane));
    }
  }
}

void Simulation::message_over(Index index) {
  LaneState& lane = lanes_[static_cast<std::size_t>(index)];
  if (--lane.messages > 0) return;
  if (!machine_.topology.serial) return unblock(lane);
  // All ends have come: the rank's link carries the larger direction.
  const auto& step = std::get<Exchange>(lane_plan(lane).steps[lane.step]);
  double sent = 0, received = 0;
  for (const auto& message : step.sends) sent += costs_.bytes_of(message.slice);
  for (const auto& message : step.receives) received += costs_.bytes_of(message.slice);
  const Index own[] = {lane.rank};
  const double us =
      noisy(std::max(machine_.link.transfer_us(std::max(sent, received)), costs_.memory_us(sent + received)));
  const double at = (sent + received > 0 ? book(own, us) : now_) + wake_us(own);
  steal(lane.rank, costs_.memory_us(received));
  ++lane.messages;  // until the link has carried them
  lane.blocked = true;
  commands_.push_back({index, lane.step, lane.epoch, -1, now_, lane.cause});
  transfers_.push_back({Transfer::Of::command, static_cast<Index>(commands_.size()) - 1, none, 0});
  events_.push(at, What::transfer, static_cast<Index>(transfers_.size()) - 1);
}

/// Books `us` of a launching thread, if it is asked now. Returns the time when it is done.
double Simulation::launch(Index launcher, double us) {
  double& until = launcher_until_[static_cast<std::size_t>(launcher)];
  until = std::max(until, now_) + noisy(us);
  return until;
}

/// True if the engine has the commands of a batch. Otherwise wakes the lane when it has.
bool Simulation::submitted(LaneState& lane) {
  const Lane& planned = lane_plan(lane);
  if (planned.kind != LaneKind::copy || !machine_.engine.paced()) return true;
  if (lane.launched) return true;
  lane.launched = true;
  const Submission& how = planned.submission;
  // On streams, commands wait in their queues before the epoch begins, unless its time includes the calls.
  if (how.prelaunched || (on_streams(machine_) && !how.timed)) return true;
  const auto steps = static_cast<std::int32_t>(planned.steps.size());
  const auto at = static_cast<std::int32_t>(lane.step);
  const auto next = std::ranges::upper_bound(how.doorbells, at);
  const std::int32_t begin = next == how.doorbells.begin() ? 0 : *std::prev(next);
  const std::int32_t end = next == how.doorbells.end() ? steps : *next;
  for (std::int32_t step = begin; step < at; ++step)
    if (!std::holds_alternative<Await>(planned.steps[static_cast<std::size_t>(step)])) return true;
  const Index launcher = how.launcher < 0 ? lane.rank : how.launcher;
  const double us = (end - at) * machine_.engine.control_us + machine_.engine.schedule_us;
  wake(lane_index(lane.rank, lane.lane), launch(launcher, us) - now_ + noisy(machine_.engine.fetch_us));
  return false;
}

/// Time of a command beyond its bytes.
double Simulation::command_us(const Step& step) const {
  const EnginePhases& engine = machine_.engine;
  if (std::holds_alternative<Broadcast>(step)) return engine.copy_us + engine.broadcast_us;
  if (std::holds_alternative<Swap>(step)) return engine.copy_us + engine.swap_us;
  return engine.copy_us;
}

bool Simulation::command(LaneState& lane, const Step& step) {
  const bool engine = lane_plan(lane).kind == LaneKind::copy;
  if (engine && !submitted(lane)) return false;
  if (engine && now_ < lane.next_command) {
    events_.push(lane.next_command, What::resume, lane_index(lane.rank, lane.lane));
    return false;
  }
  if (!lane.drained) {
    lane.drained = true;
    lane.begin = now_;
    lane.next_command = now_ + noisy(machine_.engine.queued_us);
    const Index self = lane_index(lane.rank, lane.lane);
    Command command{self, lane.step, lane.epoch, 0, now_, lane.cause};
    const auto id = static_cast<Index>(commands_.size());
    commands_.push_back(command);
    const auto part = [&](const Slice& from, const Slice& to) {
      const double bytes = costs_.bytes_of(to);
      ++commands_[static_cast<std::size_t>(id)].parts;
      ++lane.pending;
      transfer({Transfer::Of::command, id, none, engine ? command_us(step) : 0}, bytes, from.rank, to.rank,
               engine ? self : none);
    };
    if (const auto* copy = std::get_if<Copy>(&step)) part(copy->from, copy->to);
    if (const auto* swap = std::get_if<Swap>(&step)) part(swap->a, swap->b), part(swap->b, swap->a);
    if (const auto* fill = std::get_if<Fill>(&step)) part(fill->slice, fill->slice);
    if (const auto* broadcast = std::get_if<Broadcast>(&step))
      for (const Slice& to : broadcast->to) part(broadcast->from, to);
  }
  return engine || !blocked(lane);
}

/// Throws InvalidArgument if a rank accesses the memory of a rank in another node.
void Simulation::require_one_node(Index from, Index to) const {
  const int per_node = machine_.topology.ranks_per_node;
  if (per_node == 0 || from / per_node == to / per_node) return;
  throw InvalidArgument(fmt::format(
      "ranks {} and {} are in different nodes of {}, so neither can access the other's memory; use "
      "a plan that sends messages or calls collectives",
      from, to, machine_.name));
}

/// Channels from a planned rank to any other. Adds the time of the first byte to `latency_us`. A rank or node
/// that is not planned uses the channels of its representative.
std::vector<Channel> Simulation::route(Index from, Index to, double& latency_us) {
  const Topology& topology = machine_.topology;
  latency_us += machine_.link.latency_us;
  const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
  if (topology.pair.gbps > 0 && from / topology.pair_ranks == to / topology.pair_ranks) {
    latency_us += topology.pair.latency_us - machine_.link.latency_us;
    const auto [at, made] = pairs_.try_emplace({from, to}, none);
    if (made) at->second = links_.add_channel(topology.pair.gbps);
    return {at->second};
  }
  if (!node_out_.empty()) {
    const std::size_t a = f / static_cast<std::size_t>(topology.ranks_per_node),
                      b = t / static_cast<std::size_t>(topology.ranks_per_node);
    if (a != b) {
      latency_us += topology.node.latency_us - machine_.link.latency_us;
      return {node_out_[a], node_in_[b % node_in_.size()]};
    }
  }
  if (egress_.empty()) return {};
  return {egress_[f], ingress_[t % ingress_.size()]};
}

/// Counts a transfer of an engine, which takes memory bandwidth of both ranks (Lagom Eq. 6). Transfers in one
/// direction share the link, so that together they take no more than one.
void Simulation::engine_traffic(const Transfer& what, std::int32_t more) {
  const double link = machine_.link.gbps, engine = machine_.engine.gbps;
  const double rate = link > 0 && engine > 0 ? std::min(link, engine) : std::max(link, engine);
  const auto count = [&](std::vector<std::int32_t>& counts, Index rank) {
    const auto r = static_cast<std::size_t>(rank) % counts.size();
    const std::int32_t before = std::exchange(counts[r], counts[r] + more);
    if ((before == 0) != (counts[r] == 0))
      traffic(static_cast<Index>(r), more * machine_.contention.engine_traffic * rate);
  };
  count(sending_, what.from);
  count(receiving_, what.to);
}

void Simulation::transfer(const Transfer& what, double bytes, Index from, Index to, Index engine_lane,
                          Channel bound) {
  if (what.of != Transfer::Of::message) require_one_node(from, to);
  Index id;
  if (idle_transfers_.empty()) {
    id = static_cast<Index>(transfers_.size());
    transfers_.push_back(what);
  } else {
    id = idle_transfers_.back();
    idle_transfers_.pop_back();
    transfers_[static_cast<std::size_t>(id)] = what;
  }
  Transfer& moved = transfers_[static_cast<std::size_t>(id)];
  const double in_memory = from == to || machine_.link.gbps == 0 ? costs_.memory_us(bytes) : 0;
  if (machine_.topology.serial) {
    const bool stores = what.of == Transfer::Of::store || what.of == Transfer::Of::load;
    const Index payer = engine_lane != none ? lanes_[static_cast<std::size_t>(engine_lane)].rank
                        : stores && what.of == Transfer::Of::load ? to
                                                                  : from;
    const Index own[] = {payer};
    if (what.of == Transfer::Of::command) steal(payer, costs_.memory_us(bytes));
    double at = from == to ? now_ + in_memory : book(own, noisy(machine_.link.transfer_us(bytes)));
    if (engine_lane != none) {
      double& until = engine_until_[static_cast<std::size_t>(engine_lane)];
      const double rate = machine_.engine.gbps * 1e3;
      until = std::max(until, now_) + (rate > 0 ? bytes / rate : 0);
      at = std::max(at, until + noisy(moved.latency_us));
    }
    events_.push(at, What::transfer, id);
    return;
  }
  std::vector<Channel> channels;
  moved.latency_us += in_memory;
  if (from != to) channels = route(from, to, moved.latency_us);
  if (engine_lane != none && from != to && engines_[static_cast<std::size_t>(engine_lane)] != none)
    channels.push_back(engines_[static_cast<std::size_t>(engine_lane)]);
  if (bound != none && from != to) channels.push_back(bound);
  moved.latency_us = noisy(moved.latency_us);
  // Rates of operators' products were fitted with engines beside them.
  if (engine_lane != none && from != to && plan_.workload()) {
    moved.from = from, moved.to = to;
    engine_traffic(moved, 1);
  }
  if (channels.empty()) {
    events_.push(now_ + moved.latency_us, What::transfer, id);
    return;
  }
  links_.begin(now_, id, noisy(bytes), channels);
  links_changed_ = true;
}

/// Marks a transfer's last byte as sent. If it completes a batch's stores, batches that waited for room go
/// on.
void Simulation::sent(Index id) {
  Transfer& what = transfers_[static_cast<std::size_t>(id)];
  if (std::exchange(what.sent, true)) return;
  if (what.from != none) engine_traffic(what, -1);
  if (what.of != Transfer::Of::store) return;
  Batch& batch = batches_[static_cast<std::size_t>(what.id)];
  if (--batch.leaving > 0) return;
  Job& job = jobs_[static_cast<std::size_t>(batch.job)];
  stores(job, -batch.workers);
  for (const Index waiting : std::exchange(job.staged, {})) batch_done(waiting);
}

void Simulation::transfer_over(Index id) {
  sent(id);
  const Transfer what = transfers_[static_cast<std::size_t>(id)];
  idle_transfers_.push_back(id);
  switch (what.of) {
    case Transfer::Of::message:
      message_over(what.id);
      message_over(what.receiver);
      return;
    case Transfer::Of::load:
      if (--batches_[static_cast<std::size_t>(what.id)].pending == 0) run(what.id);
      return;
    case Transfer::Of::store: {
      Batch& batch = batches_[static_cast<std::size_t>(what.id)];
      const Job& job = jobs_[static_cast<std::size_t>(batch.job)];
      LaneState& lane = lanes_[static_cast<std::size_t>(job.lane)];
      if (--batch.pending == 0) items_done(what.id);
      --lane.pending;
      return unblock(lane);
    }
    case Transfer::Of::command:
      break;
  }
  Command& command = commands_[static_cast<std::size_t>(what.id)];
  LaneState& lane = lanes_[static_cast<std::size_t>(command.lane)];
  if (command.parts < 0) {  // an exchange on a serial link
    --lane.messages;
    return unblock(lane);
  }
  --lane.pending;
  if (--command.parts == 0 && lane_plan(lane).kind == LaneKind::copy) {
    lane.cause = span(lane, command.step, none, command.begin, command.cause);
  }
  unblock(lane);
}

/// Books `us` on the serial links of these ranks. Returns the time when they are done.
double Simulation::book(std::span<const Index> ranks, double us) {
  double at = now_;
  for (const Index rank : ranks) at = std::max(at, link_until_[static_cast<std::size_t>(rank)]);
  at += us;
  for (const Index rank : ranks) link_until_[static_cast<std::size_t>(rank)] = at;
  return at;
}

}  // namespace shingle::sim
