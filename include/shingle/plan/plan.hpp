// Plan: for every rank its lanes, for every lane its steps. A plan is data only (docs/concepts/plan.md).
//
// A planner writes plans, the verifier proves them, a backend executes them. Closed forms and small tables
// say which elements a step touches. Only `for_each_piece` (plan/placement.hpp) expands them to rectangles.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shingle/plan/step.hpp"
#include "shingle/plan/workload.hpp"

namespace shingle {

/// `host`: a thread of the host that awaits and notifies, between kernels and copy engines; nothing else.
enum class LaneKind : std::uint8_t { compute, communicate, copy, host };
std::string_view name(LaneKind kind);

/// How the commands of a copy lane get to its engine (DMA collectives §3.2): a thread of the host creates
/// them (control) and rings the engine's doorbell (schedule). It says when an engine may start, not in which
/// order what happens: a proof does not depend on it.
struct Submission {
  std::int32_t launcher = -1;  ///< which of the world's launching threads; -1: the rank's own
  /// All commands are with the engine before the epoch begins, and the lane's awaits are polls of the engine.
  /// Otherwise the launching thread waits where a batch begins with awaits, and creates it then.
  bool prelaunched = false;
  /// The host's calls are part of the epoch's time: a backend creates no command before the epoch is asked
  /// for.
  bool timed = false;
  std::vector<std::int32_t> doorbells{};  ///< steps at which a new batch begins, after the first
  bool operator==(const Submission&) const = default;
};

/// An in-order queue of one rank. Exception: the commands (fill, copy, broadcast, swap) of a copy lane are
/// concurrent and unordered between two notifies. A notify and the end of the lane wait for all commands
/// before them. An await delays only the steps behind it.
struct Lane {
  LaneKind kind = LaneKind::compute;
  std::string name;
  std::vector<Step> steps;
  Submission submission{};  ///< for copy lanes only
  bool operator==(const Lane&) const = default;
};

struct RankPlan {
  std::vector<Lane> lanes;
  /// Order in which a host with one hardware queue issues the steps: one lane index for each step.
  std::vector<std::int32_t> issue;
  bool operator==(const RankPlan&) const = default;
};

struct Communicator {
  std::string name;
  std::vector<std::int32_t> ranks;
  bool operator==(const Communicator&) const = default;
};

enum class Mechanism : std::uint8_t { sequential, chunked, signal, ring, fused, copy_engine, low_latency };
/// The last mechanism, plus one.
inline constexpr std::size_t mechanism_count = static_cast<std::size_t>(Mechanism::low_latency) + 1;
std::string_view name(Mechanism mechanism);
Mechanism parse_mechanism(std::string_view text);

/// A param of the mechanism, as the flag and value of `shingle run`: {"tile", "128x256"}. A switch has no
/// value.
struct Param {
  std::string name;
  std::string value;
  bool operator==(const Param&) const = default;
};
using ParamList = std::vector<Param>;
/// "tile=128x256 one-shot"
std::string describe(const ParamList& params);

/// What a plan computes: one operator, or a workload.
using Work = std::variant<Problem, Workload>;
int world_of(const Work& work);
DType dtype_of(const Work& work);
/// The one line that describes the problem or the workload.
std::string describe(const Work& work);

struct Plan {
  Work work;
  /// The mechanism that made the plan and the params that it chose: a record for readers. Nothing that proves
  /// or runs a plan asks for it (planner/params.hpp reads it).
  Mechanism mechanism = Mechanism::sequential;
  ParamList params;
  std::int32_t workers = 1;  ///< workers of each rank that waves and resources assume
  std::string rounding;  ///< where values are rounded, and in which order they are summed (DESIGN: "Numbers")
  std::vector<Buffer> buffers;
  std::vector<Counter> counters;
  std::vector<Communicator> communicators;
  /// The planned ranks: the whole world, or its first P ranks, where P divides the world. In the second case
  /// the plan is symmetric. Rank r runs the steps of rank r mod P, with every rank number in them shifted by
  /// the same distance. A symmetric plan can be simulated, not run.
  std::vector<RankPlan> ranks;

  int world() const { return world_of(work); }
  /// Of the user's matrices.
  DType dtype() const { return dtype_of(work); }
  /// Null if the plan is of an operator.
  const Workload* workload() const { return std::get_if<Workload>(&work); }
  /// The problem of an operator's plan. A plan of a workload has none: this then throws
  /// std::bad_variant_access, so ask workload() first.
  const Problem& problem() const { return std::get<Problem>(work); }
  Problem& problem() { return std::get<Problem>(work); }
  /// Where rows go in the all-to-all of an operator; null if no routing says so.
  const Routing* routing() const { return workload() ? nullptr : problem().routing.get(); }

  bool operator==(const Plan&) const = default;
};

/// True if the planned ranks stand for all ranks.
inline bool is_symmetric(const Plan& plan) {
  return plan.ranks.size() < static_cast<std::size_t>(plan.world());
}
/// Why the ranks of a problem differ, so that it has no symmetric plan. Empty if they do not differ. Those of
/// a workload never do.
std::string asymmetry(const Problem& problem);
std::string asymmetry(const Work& work);

/// Index of the first buffer with this role; -1 if there is none.
std::int32_t find_buffer(const Plan& plan, Role role);
/// The slice that covers a whole buffer on a rank.
Slice whole(const Plan& plan, std::int32_t buffer, std::int32_t rank);

}  // namespace shingle
