#include "host_world.hpp"

#include <fmt/format.h>

#include "executable.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {
DeviceBuffer HostWorld::allocate(int, std::size_t bytes) {
  return {host::allocate(bytes), bytes};
}

std::unique_ptr<Executable> HostWorld::compile(const Plan& plan) {
  if (plan.world() != size())
    throw InvalidArgument(fmt::format("the plan is for {} ranks, the world has {}", plan.world(), size()));
  if (is_symmetric(plan))
    throw InvalidArgument(
        fmt::format("the plan is symmetric, with {} of {} ranks: it can be simulated, not run",
                    plan.ranks.size(), size()));
  auto engine = std::make_unique<Engine>(state_, plan);
  engine->transport = connect(*engine);
  return std::make_unique<HostExecutable>(std::move(engine));
}

}  // namespace shingle::host
