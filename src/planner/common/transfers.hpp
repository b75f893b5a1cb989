// Transfers by copy engines: the commands of a collective, the engines that they are dealt to, and who tells
// whom when (DMA collectives §4; docs/mechanisms/copy-engine.md).
#pragma once

#include <functional>
#include <vector>

#include "peers.hpp"

namespace shingle::planner {

/// What a collective moves from each rank to each other.
struct Parcels {
  /// Rows of `source` for `dest`, where they lie and where they go; without rows there is nothing to move.
  std::function<Slice(int source, int dest)> from, to;
  bool same_for_all = false;  ///< all destinations get the same, so that one read can serve two
};

/// One command of a rank's engine, and the other ranks whose memory it writes.
struct Command {
  Step step;
  std::vector<int> peers;
};

/// The commands of a rank in lock-step with all others: the i-th goes to i-th next rank, so that no two meet
/// at one receiver. `variant` is pcpy, b2b, bcst or swap.
std::vector<Command> commands_of(const Parcels& parcels, Variant variant, int rank, int world);

/// The transfer of a collective's parcels, rank by rank: `ready` once what the rank sends is there, then
/// `arrived` once all that it gets has come. Between these two calls the rank may do other things.
class Transfer {
 public:
  using Use = std::function<void(int source)>;

  /// `handshake`: the ranks that write into others have to wait for these to have begun the epoch; null where
  /// they know it already.
  Transfer(Builder& build, const Parcels& parcels, Variant variant, const Handshake* handshake);

  /// Whether any rank moves anything.
  bool any() const { return any_; }

  /// For the last tiled step before ready(): where engines are triggered directly, its tiles do it.
  void hook(const TileGrid& grid, std::vector<TileNotify>& notify, int rank);
  /// The compute lane has made what the rank sends: engines may start.
  void ready(Builder& build, int rank);
  /// The compute lane goes on once all has come. `use`, if there is one, is called for each other rank, for
  /// steps that need its part alone.
  void arrived(Builder& build, int rank, const Use& use = {}) const;

 private:
  /// The commands of one engine, and the ranks that have to know when it is done.
  struct Engine {
    std::vector<Command> commands;
    std::vector<int> told;
  };

  /// Whether what a rank gets is what the next one gets after it: a ring. What differs goes in step instead.
  bool passes_on() const { return variant_ == Variant::ring && parcels_.same_for_all; }
  /// The ranks whose `begun`, or in place whose data, an engine's commands depend on.
  void await_peers(Builder& build, int rank, std::int32_t lane, const std::vector<int>& peers) const;
  /// Tells those that will exchange with this rank that its data is there.
  void tell_made(Builder& build, int rank, std::int32_t lane) const;
  void deal(int rank, int world, std::int32_t wanted);
  void trigger_by_host(Builder& build, int rank) const;
  std::int32_t begin_batch(Builder& build, int rank, std::size_t e) const;
  void run_engine(Builder& build, int rank, std::size_t e) const;
  void run_ring(Builder& build, int rank) const;
  void await_all(Builder& build, int rank) const;
  bool awaits_turn(int rank, int i, int world) const;
  std::vector<int> met_first(int rank, int world) const;
  void run_in_step(Builder& build, int rank) const;
  void end_by_host(Builder& build, int rank) const;

  Parcels parcels_;
  Variant variant_;
  Poll poll_;
  Trigger trigger_;
  const Handshake* handshake_;
  bool any_ = false, hooked_ = false;
  std::size_t most_engines_ = 0;
  std::vector<std::vector<Engine>> engines_;        // by rank
  std::vector<std::uint32_t> started_;              // by rank: the trigger's target
  std::vector<std::vector<std::int64_t>> awaited_;  // by rank: entries of `sent_`; with them all has come
  std::int32_t computed_ = -1, trigger_count_ = -1, ready_ = -1, done_ = -1, sent_ = -1, come_ = -1,
               made_ = -1, in_step_ = -1;
};

}  // namespace shingle::planner
