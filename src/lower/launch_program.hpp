// A plan as launches on streams. A GPU backend executes them, and the simulator computes their time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

enum class LaunchKind : std::uint8_t {
  kernel,    ///< a tiled step, or several passes as one; a pass with `parts` is a wait and a kernel for each
             ///< part
  sync,      ///< a kernel that awaits and notifies counts
  flags,     ///< notifies of a copy lane as 4-byte copies; a kernel if the backend cannot store their values
  host,      ///< a host thread's turn, then a kernel that awaits and notifies counts
  record,    ///< records an event: source of an event edge
  wait,      ///< makes the stream wait for an event: end of an event edge
  library,   ///< a collective or an exchange, by NCCL
  copy,      ///< a fill, or a command of a copy engine
  delivery,  ///< stores to flagged buffers of peers, passes over what arrives, and the counts of both, as one
             ///< kernel
};
std::string_view name(LaunchKind kind);

/// Items [first, last) of a pass after their own wait for an event or a count.
struct LaunchPart {
  std::int32_t event = -1;  ///< index among the events of the rank; -1: awaits the count
  CounterRef counter;
  std::uint32_t target = 0;
  std::int64_t first = 0, last = 0;
};

/// One launch for one or several consecutive steps of a lane.
struct Launch {
  LaunchKind kind = LaunchKind::kernel;
  std::int32_t stream = 0;  ///< index of the lane
  std::int32_t first = 0;   ///< steps [first, last) of the lane
  std::int32_t last = 0;
  std::int32_t event = -1;       ///< record, wait: index among the events of the rank
  bool may_start_early = false;  ///< programmatic dependent launch: may start before the previous kernel of
                                 ///< the stream ends (launch_rules.hpp)
  bool weights_early = false;    ///< a GEMM may load B before the kernels ahead have ended (launch_rules.hpp)
  std::int32_t sends_until = 0;  ///< a GEMM may do the sends of the delivery behind it, whose steps end here;
                                 ///< 0: none (launch_rules.hpp)
  std::int32_t sent_by = -1;     ///< delivery: step of the GEMM that may have done its sends; -1: none
  std::vector<LaunchPart> parts{};  ///< kernel: parts of a pass that follows its groups; else empty
};

struct RankLaunches {
  std::vector<Launch> launches;  ///< in issue order; launches of a stream are in the order of its lane
  std::int32_t events = 0;
  std::int32_t work_queues = 0;  ///< number of work queues that passes of several lanes share
  /// By lane: true if its stream needs a higher priority than the others (launch_rules.hpp).
  std::vector<bool> urgent{};
  bool any_urgent() const { return std::ranges::find(urgent, true) != urgent.end(); }
};

/// One epoch. Each lane is a stream; launches of a stream run in order. The streams of a rank fork from the
/// stream that begins the epoch, and join it at the end.
struct LaunchProgram {
  std::vector<RankLaunches> ranks;
  /// Reason why the streams cannot be branches of a graph; empty if they can.
  std::string unfit_for_graph;
  /// True if the host creates copy commands during the epoch, so that its calls are part of the epoch's time.
  bool host_creates_commands = false;
};

LaunchProgram lower(const Plan& plan);

/// One line for each launch, by rank and stream, with the plan's names.
std::string to_text(const Plan& plan, const LaunchProgram& program);
std::string to_json(const LaunchProgram& program, int indent = 1);

}  // namespace shingle
