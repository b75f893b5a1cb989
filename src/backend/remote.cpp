#include "remote.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "plan/accesses.hpp"
#include "shingle/plan/print.hpp"

namespace shingle {
std::string remote_access(const Plan& plan) {
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank) {
    const auto& lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes;
    for (int lane = 0; lane < static_cast<int>(lanes.size()); ++lane) {
      const auto& steps = lanes[static_cast<std::size_t>(lane)].steps;
      for (int step = 0; step < static_cast<int>(steps.size()); ++step) {
        const Accesses accesses = accesses_of(steps[static_cast<std::size_t>(step)], plan.world());
        for (const auto& [other, buffer] : accesses.memory)
          if (other != rank)
            return fmt::format("{} uses memory of rank {}", where(plan, rank, lane, step), other);
        for (const CounterRef& count : accesses.counters)
          if (count.rank != rank)
            return fmt::format("{} uses counters of rank {}", where(plan, rank, lane, step), count.rank);
      }
    }
  }
  return {};
}

std::vector<std::int32_t> remote_user_buffers(const Plan& plan) {
  std::set<std::int32_t> found;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const Lane& lane : plan.ranks[rank].lanes)
      for (const Step& step : lane.steps)
        for (const auto& [other, buffer] : accesses_of(step, plan.world()).memory)
          if (other != static_cast<std::int32_t>(rank) &&
              plan.buffers[static_cast<std::size_t>(buffer)].role != Role::internal)
            found.insert(buffer);
  return {found.begin(), found.end()};
}

}  // namespace shingle
