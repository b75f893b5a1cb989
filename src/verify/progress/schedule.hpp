// One run of a plan over several epochs, in which each lane goes on as soon as it can.
//
// Counters only grow, and one in-order worker runs each tiled step. So the system is confluent: if this run
// finishes, every interleaving finishes; if it stops, every interleaving stops (docs/concepts/proofs.md). The
// order of its events is also a linear extension of every happens-before relation of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shingle/plan/plan.hpp"
#include "verify/budget.hpp"

namespace shingle {

/// A step in one epoch, or a run of items of a tiled step that have equal gates and notifies.
struct Segment {
  std::int32_t rank = 0;
  std::int32_t lane = 0;  ///< -1: the user of the rank, between two epochs
  std::int32_t step = 0;
  std::int32_t epoch = 0;
  std::int64_t first = 0;  ///< items [first, last) of a tiled step
  std::int64_t last = 0;
  std::int32_t line = 0;  ///< index of the lane among all lanes of all ranks, then users, then queues
  std::uint32_t seq = 0;  ///< number of the step among all steps of its line in all epochs, from 1
  bool closes = true;     ///< true if the step is done after this segment
};

enum class EventKind : std::uint8_t { segment, collective, message };

struct Event {
  EventKind kind = EventKind::segment;
  std::vector<std::int32_t>
      segments;              ///< the segment; all participants of a collective; or sender and receiver
  std::int32_t send = 0;     ///< message: index in the sender's sends
  std::int32_t receive = 0;  ///< message: index in the receiver's receives
};

/// An add of a segment to a count, or its await.
struct Signal {
  std::int32_t segment = 0;
  std::int64_t amount = 0;   ///< sum of all adds; `set` counter: the value; await: the target. Absolute, with
                             ///< all epochs counted.
  std::int64_t at_once = 0;  ///< amount that one tile adds
  bool of_parts = false;     ///< await: TileGate::of_parts
};

/// All adds to a count and all awaits of it.
struct CountHistory {
  CounterRef at;
  std::vector<Signal> adds;
  std::vector<Signal> awaits;
};

struct Schedule {
  std::int32_t epochs = 0;
  std::int32_t lines = 0;  ///< lanes of all ranks, one user for each rank, and their queues
  std::vector<std::vector<std::int32_t>> rank_lines;  ///< by rank: its lanes in order, then its queues
  std::vector<Segment> segments;
  std::vector<Event> events;
  std::vector<CountHistory> counts;
  std::string
      stuck;  ///< for each lane that stopped, its step and what this waits for; empty: the run finished
  std::string mismatch;  ///< collectives that meet but do not match; empty: none
};

/// The step of a segment. The segment must not be the user's.
inline const Step& step_of(const Plan& plan, const Segment& s) {
  return plan.ranks[s.rank].lanes[s.lane].steps[s.step];
}

/// Line of the user of a rank.
std::int32_t user_line(const Plan& plan, int rank);

/// Runs a plan.
///
/// With `hardware_queue`, all lanes of a rank share one queue in issue order. A step starts after the
/// previous step of its lane. It leaves the queue when it starts, or, if it waits in the queue
/// (plan/steps.hpp), when its wait is over. So a step at the head of the queue delays all steps issued after
/// it.
///
/// `budget`, if not null, is charged for attempts and memory.
Schedule run_greedily(const Plan& plan, std::int32_t epochs, bool hardware_queue, Budget* budget = nullptr);

}  // namespace shingle
