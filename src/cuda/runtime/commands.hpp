// The commands of one rank's epoch, made from its launches and issued on the streams of its lanes.
#pragma once

#include <memory>
#include <vector>

#include "cuda/commands/command.hpp"
#include "rank_queue.hpp"

namespace shingle::cuda {

/// In the order of the launches; null if a launch has nothing to do.
using Commands = std::vector<std::unique_ptr<Command>>;

/// The command of context.launch, a launch of the rank.
std::unique_ptr<Command> make_command(const Context& context, const RankPlan& rank);

/// Copies between matrices of the user and internal copies of them.
void move(const std::vector<Memory::Staged::Move>& moves, cudaStream_t stream);

/// By lane: true if it is urgent. Lanes from `lanes` on have no commands.
inline std::vector<bool> urgent_lanes(const RankLaunches& launches, std::size_t lanes) {
  std::vector<bool> urgent(launches.urgent);
  urgent.resize(lanes);
  return urgent;
}

/// Calls issue(command, launch, stream) for each launch, in the plan's issue order, in which one hardware
/// queue would serve them without deadlock. The lanes' streams fork from `stream`, and join it at the end.
template <class Issue>
void issue_lanes(RankQueue& queue, cudaStream_t stream, std::size_t lanes, const RankLaunches& launches,
                 const Commands& commands, Issue&& issue) {
  const std::vector<bool> urgent = urgent_lanes(launches, lanes);
  queue.fork(stream, urgent);
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const Launch& launch = launches.launches[i];
    const auto lane = static_cast<std::size_t>(launch.stream);
    if (lane >= lanes) continue;
    issue(commands[i].get(), launch, queue.of(lane, stream, urgent[lane]));
  }
  queue.join(stream, urgent);
}

}  // namespace shingle::cuda
