// What ranks make together before a plan runs: communicators, and connections between ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "start_line.hpp"
#include "world.hpp"

namespace shingle::cuda {

class Connections {
 public:
  /// Makes the communicators of the plan. Collective; all processes pass the same plan.
  Connections(CudaWorld& world, const Plan& plan);

  /// Calls action(index of the local rank) on a launching thread of each local rank, under the deadline.
  using OnAll = std::function<void(std::function<void(std::size_t)> action, double timeout_us)>;
  /// Makes NCCL connect ranks now; otherwise it would connect them in the middle of a plan. Tries once
  /// whether as many lanes can run as branches of a graph, and returns that. Collective. `failed`: another
  /// launching thread has failed.
  bool connect(StartLine& start, const OnAll& on_all, const std::function<bool()>& failed, double timeout_us);

 private:
  void greet(std::size_t index, StartLine& start, const std::function<bool()>& failed, double timeout_us);

  CudaWorld& world_;
  std::size_t lanes_ = 0;                        // most of a rank
  std::vector<const Communicator*> exchanging_;  // communicators whose ranks send each other messages
  std::vector<DeviceMemory> greetings_;          // by local rank: buffers of greet()
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
