#include "host_world.hpp"

#include <fmt/format.h>

#include "backend/agreement.hpp"
#include "executable.hpp"
#include "shingle/base/error.hpp"

namespace shingle::host {
DeviceBuffer HostWorld::allocate(int, std::size_t bytes) {
  return {host::allocate(bytes), bytes};
}

std::unique_ptr<Engine> HostWorld::make_engine(const Plan& plan, std::shared_ptr<HostArena> arena) {
  if (plan.world() != size())
    throw InvalidArgument(fmt::format("the plan is for {} ranks, the world has {}", plan.world(), size()));
  if (is_symmetric(plan))
    throw InvalidArgument(
        fmt::format("the plan is symmetric, with {} of {} ranks: it can be simulated, not run",
                    plan.ranks.size(), size()));
  require_served(plan);
  if (!arena) require_same(plan);
  auto engine = std::make_unique<Engine>(state_, plan, std::move(arena));
  engine->transport = connect(*engine);
  return engine;
}

std::unique_ptr<Executable> HostWorld::compile(const Plan& plan) {
  return std::make_unique<HostExecutable>(make_engine(plan, nullptr));
}

std::shared_ptr<Arena> HostWorld::make_arena(std::int64_t bytes, std::shared_ptr<Heap>) {
  if (!all_same(*this, static_cast<double>(bytes)))
    throw InvalidArgument(
        fmt::format("the processes ask for arenas of different sizes; this one for {} bytes", bytes));
  return std::make_shared<HostArena>(local_ranks(), bytes);
}

std::unique_ptr<Executable> HostWorld::compile(const Plan& plan, const std::shared_ptr<Arena>& arena,
                                               double timeout_us) {
  auto memory = std::dynamic_pointer_cast<HostArena>(arena);
  if (!memory) throw InvalidArgument("the arena is not one of this world");
  auto executable = std::make_unique<HostExecutable>(make_engine(plan, std::move(memory)));
  executable->prepare(timeout_us);
  return executable;
}

}  // namespace shingle::host
