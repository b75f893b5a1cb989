// What ranks make together before a plan runs: communicators, and connections between ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "launchers.hpp"
#include "monitor.hpp"
#include "start_line.hpp"
#include "world.hpp"

namespace shingle::cuda {

class Connections {
 public:
  /// Makes the communicators of the plan. Collective; all processes pass the same plan.
  Connections(CudaWorld& world, const Plan& plan);

  /// Makes NCCL connect ranks now; otherwise it would connect them in the middle of a plan. Tries once
  /// whether as many lanes can run as branches of a graph, and returns that. Collective.
  bool connect(StartLine& start, Launchers& launchers, Monitor& monitor);

 private:
  void greet(std::size_t index, StartLine& start, const Launchers& launchers, double timeout_us);

  CudaWorld& world_;
  std::size_t lanes_ = 0;  // most of a rank
  // Communicators whose ranks send each other messages for the first time.
  std::vector<std::pair<CommKey, const Communicator*>> exchanging_;
  std::vector<DeviceMemory> greetings_;  // by local rank: buffers of greet()
};

/// Number of lanes of the rank with most.
std::size_t most_lanes(const Plan& plan);

/// Keys of all communicators of a plan, each once, in an order that is the same on all processes.
struct CommUse {
  CommKey key;
  bool messages = false;  ///< its ranks send each other point-to-point messages
};
std::vector<CommUse> communicators_of(const Plan& plan);

}  // namespace shingle::cuda
