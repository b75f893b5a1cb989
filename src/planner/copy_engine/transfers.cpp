#include "transfers.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shingle::planner {
namespace {

int after(int rank, int steps, int world) {
  return (rank + steps) % world;
}

/// The ranks that a rank swaps with as the lower side. Every pair occurs once, and ranks differ by at most
/// one in their number of swaps.
std::vector<int> partners(int rank, int world) {
  std::vector<int> peers;
  for (int i = 1; 2 * i < world; ++i) peers.push_back(after(rank, i, world));
  if (world % 2 == 0 && rank < world / 2) peers.push_back(rank + world / 2);
  return peers;
}

std::vector<int> union_of(const std::vector<Command>& commands) {
  std::vector<int> ranks;
  for (const Command& command : commands)
    for (const int peer : command.peers)
      if (std::ranges::find(ranks, peer) == ranks.end()) ranks.push_back(peer);
  return ranks;
}

}  // namespace

Gemm CopyEngineBuilder::triggering(Gemm gemm) const {
  const TileParams& tile = params().tile;
  if (params().trigger == EngineTrigger::direct)
    gemm.grid = make_grid(gemm.grid.rows, gemm.grid.cols,
                          static_cast<std::int32_t>(larger(smaller(tile.rows, gemm.grid.rows), 1)),
                          static_cast<std::int32_t>(smaller(tile.cols, gemm.grid.cols)), tile.order);
  constexpr std::int32_t many = 32;
  if (workers() > many) gemm.resources = {1, workers() - 1};
  return gemm;
}

std::vector<Command> commands_of(const Parcels& parcels, CopyVariant variant, int rank, int world) {
  std::vector<Command> commands;
  if (variant == CopyVariant::swap) {
    for (const int peer : partners(rank, world))
      if (const Slice mine = parcels.from(rank, peer); mine.rows > 0)
        commands.push_back({Swap{mine, parcels.from(peer, rank)}, {peer}});
    return commands;
  }
  std::vector<int> peers;
  for (int i = 1; i < world; ++i)
    if (parcels.from(rank, after(rank, i, world)).rows > 0) peers.push_back(after(rank, i, world));
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const int peer = peers[i];
    const Slice from = parcels.from(rank, peer);
    if (variant == CopyVariant::bcst && i + 1 < peers.size()) {
      const int other = peers[++i];
      commands.push_back({Broadcast{from, {parcels.to(rank, peer), parcels.to(rank, other)}}, {peer, other}});
    } else {
      commands.push_back({Copy{from, parcels.to(rank, peer)}, {peer}});
    }
  }
  return commands;
}

Transfer::Transfer(CopyEngineBuilder& build, const Parcels& parcels, CopyVariant variant,
                   const Handshake* handshake, Start start, const TransferLanes& lanes)
    : parcels_(parcels),
      variant_(variant),
      poll_(build.params().poll),
      trigger_(build.params().trigger),
      handshake_(handshake),
      lanes_(lanes),
      engines_(static_cast<std::size_t>(build.world())),
      started_(static_cast<std::size_t>(build.world()), 1),
      awaited_(static_cast<std::size_t>(build.world())) {
  const int world = build.world();
  for (int r = 0; r < world; ++r) deal(r, world, lanes.engines > 0 ? lanes.engines : build.params().engines);
  for (const auto& engines : engines_) most_engines_ = std::max(most_engines_, engines.size());
  any_ = most_engines_ > 0;
  if (!any_) return;

  const bool host = trigger_ == EngineTrigger::host, ring = variant == CopyVariant::ring;
  const auto most = static_cast<std::int64_t>(most_engines_);
  if (start == Start::by_trigger)
    trigger_count_ = build.counter("trigger", poll_ == PollScope::engine ? most : 1);
  if (host) {
    build.communicate_by_host();
    computed_ = build.counter("computed", 1);
    come_ = build.counter("come", 1);
    if (poll_ == PollScope::collective) ready_ = build.counter("ready", world);
    if (!ring) done_ = build.counter("done", most, CounterKind::set);
  }
  if (variant == CopyVariant::swap && poll_ != PollScope::collective) made_ = build.counter("made", world);
  if (ring && !passes_on()) in_step_ = build.counter("in step", world, CounterKind::set);
  const bool by_source = ring || host;
  sent_ = build.counter("sent", by_source ? world : world * most, CounterKind::set);
  for (int source = 0; source < world; ++source)
    for (std::size_t e = 0; e < engines_[source].size(); ++e)
      for (const int rank : engines_[source][e].told) {
        const std::int64_t entry = by_source ? source : source * most + static_cast<std::int64_t>(e);
        auto& awaited = awaited_[static_cast<std::size_t>(rank)];
        if (std::ranges::find(awaited, entry) == awaited.end()) awaited.push_back(entry);
      }
}

/// Deals the commands of a rank to its engines in turn.
void Transfer::deal(int rank, int world, std::int32_t wanted) {
  std::vector<Engine>& engines = engines_[static_cast<std::size_t>(rank)];
  if (passes_on()) {  // a ring notifies by shard: the engine signals each shard that it passes on
    for (int i = 1; i < world; ++i)
      if (const int s = after(rank, i, world); parcels_.from(s, rank).rows > 0)
        awaited_[static_cast<std::size_t>(rank)].push_back(s);
    for (int s = 0; s < world; ++s)
      if (s != after(rank, 1, world) && parcels_.from(s, after(rank, 1, world)).rows > 0) engines.resize(1);
    return;
  }
  std::vector<Command> commands = commands_of(parcels_, variant_, rank, world);
  const auto count = std::min(commands.size(), static_cast<std::size_t>(wanted));
  engines.resize(count);
  for (std::size_t i = 0; i < commands.size(); ++i)
    engines[i % count].commands.push_back(std::move(commands[i]));
  for (Engine& engine : engines) {
    engine.told = union_of(engine.commands);
    // A swap also changes the rank's own data.
    if (variant_ == CopyVariant::swap && trigger_ == EngineTrigger::direct) engine.told.push_back(rank);
  }
}

void Transfer::hook(const TileGrid& grid, std::vector<TileNotify>& notify, int rank) {
  if (trigger_ == EngineTrigger::host || grid.tiles() == 0) return;
  const std::size_t engines = engines_[static_cast<std::size_t>(rank)].size();
  const std::size_t places = poll_ == PollScope::engine ? engines : std::min<std::size_t>(engines, 1);
  for (std::size_t i = 0; i < places; ++i)
    notify.push_back({trigger_count_, {rank}, {grid.positions()}, {static_cast<std::int32_t>(i)}});
  if (places > 0) started_[static_cast<std::size_t>(rank)] = static_cast<std::uint32_t>(grid.tiles());
  hooked_ = true;
}

void Transfer::ready(CopyEngineBuilder& build, int rank, const std::vector<CounterRef>& after) {
  if (!any_) return;
  after_ = after;
  const auto& engines = engines_[static_cast<std::size_t>(rank)];
  if (trigger_ == EngineTrigger::host) {
    hand_over(build, rank, computed_, lanes_.compute, communicate_lane);
    tell_made(build, rank, communicate_lane);
    trigger_by_host(build, rank);
  } else if (!hooked_ && trigger_count_ >= 0) {
    const std::size_t places =
        poll_ == PollScope::engine ? engines.size() : std::min<std::size_t>(engines.size(), 1);
    for (std::size_t i = 0; i < places; ++i)
      build.notify(rank, lanes_.compute, trigger_count_, static_cast<std::int64_t>(i));
  }
  hooked_ = false;
  if (trigger_ == EngineTrigger::direct) tell_made(build, rank, lanes_.compute);
  if (variant_ == CopyVariant::ring) {
    if (!engines.empty()) passes_on() ? run_ring(build, rank) : run_in_step(build, rank);
  } else {
    for (std::size_t e = 0; e < engines.size(); ++e) run_engine(build, rank, e);
  }
  if (trigger_ == EngineTrigger::host) end_by_host(build, rank);
}

void Transfer::await_peers(CopyEngineBuilder& build, int rank, std::int32_t lane,
                           const std::vector<int>& peers) const {
  for (const int peer : peers) {
    if (peer == rank) continue;
    if (made_ >= 0) {
      build.await(rank, lane, made_, peer);
    } else if (handshake_) {
      handshake_->await(build, rank, lane, peer);
    }
  }
}

void Transfer::tell_made(CopyEngineBuilder& build, int rank, std::int32_t lane) const {
  for (int peer = 0; made_ >= 0 && peer < build.world(); ++peer)
    for (const Engine& engine : engines_[static_cast<std::size_t>(peer)])
      if (peer != rank && std::ranges::find(engine.told, rank) != engine.told.end()) {
        if (handshake_) handshake_->await(build, rank, lane, peer);
        build.notify_peer(rank, lane, made_, peer, rank);
      }
}

/// The rank's host thread waits until peers may be written to, and starts the engines.
void Transfer::trigger_by_host(CopyEngineBuilder& build, int rank) const {
  const auto& engines = engines_[static_cast<std::size_t>(rank)];
  if (poll_ == PollScope::collective) {
    // A rank that neither sends nor receives could otherwise run any number of epochs ahead.
    const auto takes_part = [&](int r) {
      return !engines_[static_cast<std::size_t>(r)].empty() || !awaited_[static_cast<std::size_t>(r)].empty();
    };
    if (takes_part(rank)) {
      if (handshake_ && rank > 0) handshake_->await(build, rank, communicate_lane, 0);
      build.notify_peer(rank, communicate_lane, ready_, 0, rank);
    }
    if (rank > 0) return;
    for (int r = 0; r < build.world(); ++r)
      if (takes_part(r)) build.await(0, communicate_lane, ready_, r);
    build.notify(0, communicate_lane, trigger_count_, 0);
    return;
  }
  if (engines.empty()) return;
  std::vector<int> peers;
  for (const Engine& engine : engines) peers.insert(peers.end(), engine.told.begin(), engine.told.end());
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  if (variant_ == CopyVariant::ring) peers = met_first(rank, build.world());
  await_peers(build, rank, communicate_lane, peers);
  const std::size_t places = poll_ == PollScope::engine ? engines.size() : 1;
  for (std::size_t i = 0; i < places; ++i)
    build.notify(rank, communicate_lane, trigger_count_, static_cast<std::int64_t>(i));
}

/// Begins a batch of commands in an engine's lane; it first awaits or polls the trigger.
std::int32_t Transfer::begin_batch(CopyEngineBuilder& build, int rank, std::size_t e) const {
  const std::int32_t lane = build.engine(rank, lanes_.first_engine + e);
  const bool for_all = poll_ == PollScope::collective;
  if (trigger_count_ >= 0)
    build.step(rank, lane,
               Await{{trigger_count_, for_all ? 0 : rank,
                      poll_ == PollScope::engine ? static_cast<std::int32_t>(e) : 0},
                     started_[static_cast<std::size_t>(rank)]});
  for (const CounterRef& count : after_) build.step(rank, lane, Await{count, 1});
  return lane;
}

void Transfer::run_engine(CopyEngineBuilder& build, int rank, std::size_t e) const {
  const Engine& engine = engines_[static_cast<std::size_t>(rank)][e];
  const std::int32_t lane = begin_batch(build, rank, e);
  const bool direct = trigger_ == EngineTrigger::direct;
  if (direct) await_peers(build, rank, lane, engine.told);
  for (const Command& command : engine.commands) build.step(rank, lane, command.step);
  if (!direct) return build.notify(rank, lane, done_, static_cast<std::int64_t>(e));
  for (const int peer : engine.told)
    build.notify_peer(rank, lane, sent_, peer,
                      rank * static_cast<std::int64_t>(most_engines_) + static_cast<std::int64_t>(e));
}

/// Each shard goes from rank to rank: an engine passes on the shard that came before.
void Transfer::run_ring(CopyEngineBuilder& build, int rank) const {
  const int world = build.world(), next = after(rank, 1, world);
  const std::int32_t lane = begin_batch(build, rank, 0);
  if (trigger_ == EngineTrigger::direct) await_peers(build, rank, lane, met_first(rank, world));
  for (int i = 0; i + 1 < world; ++i) {
    const int shard = after(rank, world - i, world);
    const Slice from = i == 0 ? parcels_.from(rank, next) : parcels_.to(shard, rank);
    if (from.rows == 0) continue;
    if (i > 0) {
      build.ring_doorbell(rank, lane);
      build.await(rank, lane, sent_, shard);
    }
    build.step(rank, lane, Copy{from, parcels_.to(shard, next)});
    build.notify_peer(rank, lane, sent_, next, shard);
  }
}

/// True if another rank writes to the target before a rank's i-th copy in step: the next rank, with its
/// previous copy.
bool Transfer::awaits_turn(int rank, int i, int world) const {
  return i > 1 && parcels_.from(after(rank, 1, world), after(rank, i, world)).rows > 0;
}

/// Ranks that a rank's engine writes to before any other rank does, and the rank that it tells of its turns.
/// Signals of those other ranks imply the rest.
std::vector<int> Transfer::met_first(int rank, int world) const {
  if (passes_on()) return {after(rank, 1, world)};
  std::vector<int> peers;
  for (int i = 1; i < world; ++i)
    if (parcels_.from(rank, after(rank, i, world)).rows > 0 && !awaits_turn(rank, i, world))
      peers.push_back(after(rank, i, world));
  const int last = after(rank, world - 1, world);
  for (int i = 1; i + 1 < world; ++i)
    if (parcels_.from(rank, after(rank, i, world)).rows > 0 &&
        parcels_.from(last, after(rank, i, world)).rows > 0 && std::ranges::find(peers, last) == peers.end())
      peers.push_back(last);
  return peers;
}

/// In step: the i-th copy goes to the i-th next rank, after the next rank's previous copy to the same target
/// has ended.
void Transfer::run_in_step(CopyEngineBuilder& build, int rank) const {
  const int world = build.world(), last = after(rank, world - 1, world);
  const std::int32_t lane = begin_batch(build, rank, 0);
  if (trigger_ == EngineTrigger::direct) await_peers(build, rank, lane, met_first(rank, world));
  bool begun = false;
  for (int i = 1; i < world; ++i) {
    const int peer = after(rank, i, world);
    const Slice from = parcels_.from(rank, peer);
    if (from.rows == 0) continue;
    if (awaits_turn(rank, i, world)) {
      if (begun) build.ring_doorbell(rank, lane);
      build.await(rank, lane, in_step_, i - 1);
    }
    build.step(rank, lane, Copy{from, parcels_.to(rank, peer)});
    build.notify_peer(rank, lane, sent_, peer, rank);
    if (i + 1 < world && parcels_.from(last, peer).rows > 0) build.notify_peer(rank, lane, in_step_, last, i);
    begun = true;
  }
}

/// The rank's host thread awaits its engines, notifies the other ranks, and awaits theirs.
void Transfer::end_by_host(CopyEngineBuilder& build, int rank) const {
  std::vector<int> told;
  for (std::size_t e = 0; e < engines_[static_cast<std::size_t>(rank)].size() && done_ >= 0; ++e) {
    build.await(rank, communicate_lane, done_, static_cast<std::int64_t>(e));
    for (const int peer : engines_[static_cast<std::size_t>(rank)][e].told)
      if (std::ranges::find(told, peer) == told.end()) told.push_back(peer);
  }
  for (const int peer : told) build.notify_peer(rank, communicate_lane, sent_, peer, rank);
  for (const std::int64_t entry : awaited_[static_cast<std::size_t>(rank)])
    build.await(rank, communicate_lane, sent_, entry);
  build.notify(rank, communicate_lane, come_, 0);
}

void Transfer::await_all(CopyEngineBuilder& build, int rank, std::int32_t lane) const {
  if (trigger_ == EngineTrigger::host) return build.await(rank, lane, come_, 0);
  for (const std::int64_t entry : awaited_[static_cast<std::size_t>(rank)])
    build.await(rank, lane, sent_, entry);
}

void Transfer::arrived(CopyEngineBuilder& build, int rank, std::int32_t lane, const Use& use) const {
  if (!any_) return;
  // A host thread reports all data at once. For a swap, either rank of the pair may run the command, so an
  // entry does not identify the source.
  const bool apart = use && trigger_ == EngineTrigger::direct && variant_ != CopyVariant::swap;
  if (!apart) await_all(build, rank, lane);
  const std::int64_t entries = variant_ == CopyVariant::ring ? 1 : static_cast<std::int64_t>(most_engines_);
  for (int i = 1; use && i < build.world(); ++i) {
    const int source = after(rank, build.world() - i, build.world());  // sources in order of arrival
    for (const std::int64_t entry : awaited_[static_cast<std::size_t>(rank)])
      if (apart && entry / entries == source) build.await(rank, lane, sent_, entry);
    use(source);
  }
}

}  // namespace shingle::planner
