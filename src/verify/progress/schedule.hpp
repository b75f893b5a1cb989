// One run of a plan by greedy in-order lanes, several epochs long.
//
// Counters only grow and tiled steps are run by one in-order worker each, so the system is confluent: if this
// run finishes, every interleaving does; where it stops, every interleaving stops (docs/concepts/proofs.md).
// The order of its events is also a linear extension of every happens-before relation of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"
#include "verify/budget.hpp"

namespace shingle {

/// A step of one epoch, or a run of items of a tiled step that have equal gates and notifies.
struct Segment {
  std::int32_t rank = 0;
  std::int32_t lane = 0;  ///< -1: the user of the rank, between two epochs
  std::int32_t step = 0;
  std::int32_t epoch = 0;
  std::int64_t first = 0;  ///< items [first, last) of a tiled step
  std::int64_t last = 0;
  std::int32_t line = 0;  ///< the lane among all lanes of all ranks, users and queues last
  std::uint32_t seq = 0;  ///< the step among all of its line, all epochs, from 1
  bool closes = true;     ///< the step is done after this segment
};

enum class EventKind : std::uint8_t { segment, collective, message };

struct Event {
  EventKind kind = EventKind::segment;
  std::vector<std::int32_t> segments;  ///< one; all participants; the sender and the receiver
  std::int32_t send = 0;               ///< message: index in the sender's sends …
  std::int32_t receive = 0;            ///< … and in the receiver's receives
};

/// What a segment adds to, or awaits of, one count.
struct Signal {
  std::int32_t segment = 0;
  std::int64_t amount = 0;  ///< added in all; of a `set` counter the value; of an await the target: absolute,
                            ///< all epochs counted
  std::int64_t at_once = 0;  ///< added by one tile
};

/// All that happens to one count.
struct CountHistory {
  CounterRef at;
  std::vector<Signal> adds;
  std::vector<Signal> awaits;
};

struct Schedule {
  std::int32_t epochs = 0;
  std::int32_t lines = 0;                             ///< lanes of all ranks, one user each, and their queues
  std::vector<std::vector<std::int32_t>> rank_lines;  ///< by rank: its lanes in order, then its queues
  std::vector<Segment> segments;
  std::vector<Event> events;
  std::vector<CountHistory> counts;
  std::string stuck;     ///< who waits for what, where the run stopped; empty: it finished
  std::string mismatch;  ///< collectives that meet but do not fit together
};

/// The step that a segment is, or is a part of; not of the user's.
inline const Step& step_of(const Plan& plan, const Segment& s) {
  return plan.ranks[s.rank].lanes[s.lane].steps[s.step];
}

/// The number of the user's line of a rank.
std::int32_t user_line(const Plan& plan, int rank);

/// `hardware_queue`: all lanes of a rank share one queue, in its order of issue. A step leaves the queue when
/// it starts, behind the step before it in its lane; what waits in the queue (plan/steps.hpp) leaves it when
/// it has waited. So a step at the head of the queue holds back all that is issued after it. A budget, where
/// there is one, is told of what is tried and kept.
Schedule run_greedily(const Plan& plan, std::int32_t epochs, bool hardware_queue, Budget* budget = nullptr);

}  // namespace shingle
