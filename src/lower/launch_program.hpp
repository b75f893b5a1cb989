// A plan as launches on streams: a GPU backend executes them, the simulator prices them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/plan/plan.hpp"

namespace shingle {

enum class LaunchKind : std::uint8_t {
  kernel,  ///< a tiled step, or several passes as one; a pass with `parts` is a wait and a kernel for each
  sync,    ///< a kernel that awaits and notifies counts
  flags,   ///< notifies of a copy lane as 4-byte copies; a kernel if the backend has no room for their values
  host,    ///< the turn of a host thread, then a kernel that awaits and notifies counts
  record,  ///< records an event: the lane's part of an event edge
  wait,    ///< makes the stream wait for an event
  library,  ///< a collective or an exchange: a call of NCCL
  copy,     ///< a fill, or a command of a copy engine
};
std::string_view name(LaunchKind kind);

/// Items [first, last) of a pass, behind a wait of their own: for an event, or for a count.
struct LaunchPart {
  std::int32_t event = -1;  ///< index among the events of the rank; -1: the count
  CounterRef counter;
  std::uint32_t target = 0;
  std::int64_t first = 0, last = 0;
};

/// One or several consecutive steps of a lane.
struct Launch {
  LaunchKind kind = LaunchKind::kernel;
  std::int32_t stream = 0;  ///< the lane
  std::int32_t first = 0;   ///< steps [first, last) of the lane
  std::int32_t last = 0;
  std::int32_t event = -1;  ///< record, wait: index among the events of the rank
  bool may_start_early =
      false;  ///< may start before the previous kernel of the stream ends (launch_rules.hpp)
  std::vector<LaunchPart> parts{};  ///< kernel: a pass that waits group by group
};

struct RankLaunches {
  std::vector<Launch> launches;  ///< in order of issue: those of a stream in the order of its lane
  std::int32_t events = 0;
  std::int32_t work_queues = 0;  ///< that passes of several lanes share
};

/// An epoch. Each lane is a stream; a launch of a stream follows those before it in that stream. The streams
/// of a rank fork from one that begins the epoch, and join it at the end.
struct LaunchProgram {
  std::vector<RankLaunches> ranks;
  /// Why the streams cannot be branches of a graph; empty: they can.
  std::string unfit_for_graph;
  /// The host creates copy commands during the epoch: its calls are part of the epoch's time.
  bool host_creates_commands = false;
};

LaunchProgram lower(const Plan& plan);

/// A line a launch, by rank and stream, with the plan's names.
std::string to_text(const Plan& plan, const LaunchProgram& program);
std::string to_json(const LaunchProgram& program, int indent = 1);

}  // namespace shingle
