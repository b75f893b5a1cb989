// A plan in virtual time: the lanes of all ranks, the counts they wait for, and the resources they share.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <string>

#include "costs.hpp"
#include "events.hpp"
#include "links.hpp"
#include "lower/launch_program.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::sim {

using Index = std::int32_t;
inline constexpr Index none = -1;

/// Index of the span that caused a wait, so that the critical path can be followed back.
using Cause = std::int32_t;

/// Progress of a lane of a rank.
struct LaneState {
  Index rank = 0, lane = 0;
  std::int32_t epoch = 0;
  std::size_t step = 0;
  bool entered = false;       ///< the step has begun
  bool waiting = false;       ///< for a count
  bool met = false;           ///< its collective is over
  bool launched = false;      ///< tiled step: its workers may begin; command: its engine has it
  std::int32_t pending = 0;   ///< transfers in flight that a notify must wait for
  std::int32_t messages = 0;  ///< unfinished messages of an exchange
  bool blocked = false;       ///< waits until `pending` and `messages` are 0
  bool drained = false;       ///< notify: waits only for its engine's sync; command: begun
  double next_command = 0;    ///< copy engine: earliest start of the next command
  double begin = 0;           ///< of the step
  Cause cause = none;
  Index job = none;  ///< the job of its tiled step
};

/// A lane that waits for a count.
struct Waiter {
  std::int64_t target = 0;
  Index lane = none;

  bool operator==(const Waiter&) const = default;
};
struct Count {
  std::int64_t value = 0;
  Cause cause = none;  ///< span of its last add
  std::vector<Waiter> waiters;

  /// Registers a lane to be woken when the count reaches its target. To ask again adds nothing.
  void await(Waiter waiter) {
    if (std::ranges::find(waiters, waiter) == waiters.end()) waiters.push_back(waiter);
  }
};

/// The items of a tiled step, or of a work queue that several lanes share.
struct Pass {
  const Step* step = nullptr;
  std::vector<std::int64_t> bounds;  ///< starts of runs of items with equal hooks
  std::size_t run = 0;
  std::int64_t next = 0;  ///< first unclaimed item
  std::int32_t epoch = 0;
  bool loads = false, stores = false;  ///< from and to other ranks
};

/// The workers of a lane on a tiled step.
struct Job {
  Index lane = none, pass = none;
  std::int32_t most = 0;    ///< max. workers
  std::int32_t held = 0;    ///< workers that it has
  std::int32_t active = 0;  ///< workers with an item
  bool gated = false;       ///< the next item waits for a count, or for its kernel
  bool was_gated = false;   ///< the next item has waited for a count
  Index kernel = none;      ///< group whose kernel runs, if each group has a kernel
  bool over = false;
  std::vector<Index> batches;  ///< batches being computed
  std::int32_t storing = 0;    ///< workers of batches whose stores to other ranks are in flight
  std::vector<Index> staged;   ///< computed batches that wait for room to store to other ranks
  std::vector<Index> summing;  ///< computed batches of sums that wait for the parts of other ranks
  double begin = 0;
  Cause cause = none;
  std::map<Index, Cause> spans;  ///< by group
};

/// Items that began together.
struct Batch {
  Index job = none;
  std::int64_t first = 0, last = 0;
  std::int32_t workers = 0;
  std::int32_t pending = 0;  ///< unfinished loads or stores between ranks
  std::int32_t leaving = 0;  ///< stores not yet sent completely
  bool added = false;        ///< of sums: the parts of other ranks have been, or are being, added
  bool awaited = false;      ///< of sums: the parts were not there when the products were complete
  double begin = 0;
  double end = 0;               ///< at the pace of now
  std::int64_t version = 0;     ///< version of `end`
  double slower = 1;            ///< by the memory traffic of others; of a library's product: now
  double slower_by_stores = 1;  ///< by stores of its product to other ranks now
  Cause cause = none;           ///< span of the items
};

/// A command of a copy engine; it has one or more transfers.
struct Command {
  Index lane = none;
  std::size_t step = 0;
  std::int32_t epoch = 0;
  std::int32_t parts = 0;
  double begin = 0;
  Cause cause = none;
};

/// Bytes in flight, and their purpose.
struct Transfer {
  enum class Of : std::uint8_t { command, message, store, load } of = Of::command;
  Index id = none;               ///< command, batch, or the lane that sends a message
  Index receiver = none;         ///< of a message: its receiving lane
  double latency_us = 0;         ///< added after the last byte
  bool sent = false;             ///< the last byte is sent
  Index from = none, to = none;  ///< of an engine, between two ranks
};

/// A collective and the ranks that meet in it.
struct Meeting {
  const Collective* step = nullptr;
  std::vector<Index> lanes;                 ///< lanes that have arrived
  std::vector<Index> wanting;               ///< ranks that have not given it workers yet
  std::int32_t workers = 0;                 ///< of each rank
  double bytes = 0;                         ///< as the curves count them
  double gbps = 0;                          ///< rate alone on every rank's link
  double share = 1;                         ///< part of that rate beside other collectives
  double left_us = 0, rate = 1, since = 0;  ///< remaining time at rate 1, its rate, and when both were set
  std::int64_t version = 0;
  Cause cause = none;
};

class Simulation {
 public:
  Simulation(const Plan& plan, const Machine& machine, const SimOptions& options);
  Simulated run() &&;

 private:
  // Lanes (simulation.cpp).
  void index_launches();
  void resume(Index lane);
  bool step(LaneState& lane);
  void next_step(LaneState& lane);
  void wake(Index lane, double after_us = 0);
  bool delayed(LaneState& lane, double us);
  bool blocked(LaneState& lane);
  void unblock(LaneState& lane);
  bool synced(LaneState& lane);
  const Launch* launch_of(const LaneState& lane) const;
  const Launch* launch_of(const LaneState& lane, std::size_t step) const;
  bool begins_early(const LaneState& lane) const;
  bool may_start_early(const LaneState& lane, std::size_t step) const;
  std::int32_t most_workers(const LaneState& lane, const Step& step) const;
  bool by_event(const LaneState& lane) const;
  bool await(LaneState& lane, const Await& step);
  bool notify(LaneState& lane, const Notify& step);
  void add(const CounterRef& at, std::int64_t value, std::int32_t epoch, Cause cause);
  Count& count(const CounterRef& at);
  std::int64_t absolute(const CounterRef& at, std::int64_t target, std::int32_t epoch) const;
  Cause span(const LaneState& lane, std::size_t step, Index group, double begin, Cause cause);
  double noisy(double us);
  void follow_critical_path();
  [[noreturn]] void explain_stop() const;

  // Tiled steps (tiles.cpp).
  bool compute(LaneState& lane, const Step& step);
  Index pass_of(const LaneState& lane, const Step& step);
  void claim(Index job);
  bool gates_open(Index job, std::int64_t item, bool of_parts);
  bool sums_up(Index batch);
  bool has_parts(const LaneState& lane) const;
  bool launched(Index job, bool waited);
  void start(Index job, std::int64_t last);
  void run(Index batch);
  void batch_done(Index batch);
  void items_done(Index batch);
  void retire(Index job);
  void give_back(Index rank, std::int32_t workers);
  void computes(Index rank, std::int32_t more);
  double slowed_by_traffic(Index rank, const Step& step, std::int32_t workers) const;
  double slowed_by_stores(const Job& job) const;
  void retime(Index batch, double Batch::*factor, double now);
  void stores(Job& job, std::int32_t more);
  void traffic(Index rank, double gbps, double slowdown = 0);
  double throttled_us(Index rank, double us) const;
  void steal(Index rank, double us);
  void add_remote_bytes(const Step& step, std::int64_t item, Index rank, bool loads,
                        std::vector<double>& by_rank) const;
  std::int32_t move(Index batch, bool loads);

  // Communication (traffic.cpp).
  bool collective(LaneState& lane, const Collective& step);
  void begin_meetings();
  void begin(Meeting& meeting);
  bool beside_computation(std::span<const Index> ranks) const;
  double wake_us(std::span<const Index> ranks);
  bool follows_another(Index lane) const;
  void share_links();
  void retime(Index meeting);
  void end(Index meeting);
  bool exchange(LaneState& lane, const Exchange& step);
  void match(std::pair<Index, Index> ends, Index current);
  void message_over(Index lane);
  bool command(LaneState& lane, const Step& step);
  bool submitted(LaneState& lane);
  double command_us(const Step& step) const;
  void engine_traffic(const Transfer& what, std::int32_t more);
  double launch(Index launcher, double us);
  void transfer(const Transfer& what, double bytes, Index from, Index to, Index engine_lane,
                Channel bound = none);
  Channel sender(Index lane);
  void sent(Index transfer);
  void transfer_over(Index transfer);
  double book(std::span<const Index> ranks, double us);
  void require_one_node(Index from, Index to) const;
  std::vector<Channel> route(Index from, Index to, double& latency_us);
  std::pair<Index, Index> planned(Index from, Index to) const;

  const RankPlan& rank_plan(const LaneState& lane) const {
    return plan_.ranks[static_cast<std::size_t>(lane.rank)];
  }
  const Lane& lane_plan(const LaneState& lane) const {
    return rank_plan(lane).lanes[static_cast<std::size_t>(lane.lane)];
  }
  Index lane_index(Index rank, Index lane) const {
    return first_lane_[static_cast<std::size_t>(rank)] + lane;
  }

  const Plan& plan_;
  const Machine& machine_;
  SimOptions options_;
  std::int32_t capacity_;  ///< workers of a rank
  Costs costs_;
  Simulated out_;
  std::uint64_t bits_;
  double now_ = 0;
  Events events_;
  Links links_;
  std::int64_t links_version_ = 0;
  bool links_changed_ = false;

  std::deque<LaneState> lanes_;
  std::vector<Index> first_lane_;  // by rank
  LaunchProgram program_;
  std::vector<std::vector<const Launch*>> launch_of_;  // [lane][step]; null: no launch; empty: not lowered
  std::vector<std::int32_t> lanes_done_;               // by rank: finished epochs, summed over its lanes
  std::vector<Count> counts_;
  std::vector<std::vector<Index>> first_count_;  // [counter][rank]
  std::deque<Pass> passes_;
  std::map<std::pair<Index, Index>, Index> shared_;  // [rank, queue]
  std::deque<Job> jobs_;
  std::deque<Batch> batches_;
  std::deque<Command> commands_;
  std::vector<Index> idle_batches_, idle_transfers_;  // free entries for reuse
  std::deque<Transfer> transfers_;
  std::vector<std::int32_t> free_;                 // by rank: free workers
  std::vector<std::int32_t> computing_;            // by rank: jobs that compute
  std::vector<double> computing_since_;            // by rank
  std::vector<std::vector<Index>> rank_jobs_;      // by rank: jobs that may take workers
  std::vector<double> traffic_gbps_;               // by rank: memory traffic of collectives and engines
  std::vector<double> product_slowdown_;           // by rank: of the collectives that run
  std::vector<std::int32_t> sending_, receiving_;  // by rank: transfers of engines
  std::deque<Meeting> meetings_;
  std::vector<std::vector<Index>> calls_;             // [communicator]: meetings in order
  std::vector<std::vector<std::size_t>> entered_;     // [communicator][rank]
  std::vector<Index> ready_, running_;                // meetings
  std::vector<Channel> egress_, ingress_;             // by rank
  std::vector<Channel> node_out_, node_in_;           // by node
  std::map<std::pair<Index, Index>, Channel> pairs_;  // [from, to]
  // By lane and workers; none: links are the only bound
  std::map<std::pair<Index, std::int32_t>, Channel> senders_;
  std::vector<Channel> engines_;      // by lane; none: no rate limit
  std::vector<double> engine_until_;  // by lane; used with serial links
  std::vector<double> link_until_;    // by rank; used with serial links
  std::vector<double> launcher_until_;
  struct Posted {
    std::vector<Index> sends, receives;  // lanes
    std::vector<double> bytes;           // of the sends
    std::size_t matched = 0;
  };
  std::map<std::pair<Index, Index>, Posted> posted_;  // [from, to] ranks, as planned()
  std::map<std::pair<Index, Index>, Index> polled_;  // [counter, rank]: launching thread that writes the flag
  std::vector<Cause> causes_;                        // by span: the span that it waited for
};

/// Group of a position, if its step notifies or is gated by groups; else -1.
Index group_at(const Step& step, std::int64_t position);

}  // namespace shingle::sim
