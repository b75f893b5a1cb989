// A world of MPI processes.
#include "backend/agreement.hpp"
#include "backend/remote.hpp"
#include "shingle/base/error.hpp"
#include "shingle/host/host.hpp"

#ifdef SHINGLE_WITH_MPI
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "host/executor/host_world.hpp"
#include "shingle/plan/json.hpp"
#include "transport.hpp"

namespace shingle {
namespace {

using host::Health;
using host::MpiControl;
using host::MpiProcess;

class MpiWorld final : public host::HostWorld {
 public:
  MpiWorld(std::shared_ptr<host::WorldState> shared, MpiProcess& process)
      : HostWorld(std::move(shared), process.size()), process_(process), control_(process, state()->health) {
    // All processes must make the same plans, so they need the same machine profile.
    state()->machine.peer_memory = false;
    state()->machine.workers = -static_cast<int>(all_max({-double(state()->machine.workers)})[0]);
  }

  Capabilities capabilities() const override {
    return {.remote_memory = false, .native_dtypes = host::native_dtypes()};
  }

  void barrier() override {
    in_step([&] { control_.barrier(state()->options.timeout_us); });
  }
  std::vector<double> all_max(std::vector<double> values) override {
    in_step([&] { values = control_.all_max(std::move(values), state()->options.timeout_us); });
    return values;
  }

 protected:
  void require_served(const Plan& plan) const override {
    if (const std::string access = remote_access(plan); !access.empty())
      throw Unsupported(access + ", but MPI processes cannot reach each other's memory");
  }
  void require_same(const Plan& plan) override {
    if (!all_same(*this, to_json(plan, -1)))
      throw InvalidArgument(
          "the processes compile different plans: check that all were started with the same arguments");
  }
  std::unique_ptr<host::Transport> connect(host::Engine& engine) override {
    return std::make_unique<host::MpiTransport>(engine, process_, control_);
  }

 private:
  /// Does a collective action of all processes, unless one of them has failed. Enqueued calls come first:
  /// they exchange messages of the same kind.
  template <class Action>
  void in_step(Action action) {
    Health& health = state()->health;
    state()->streams.synchronize();
    health.require();
    try {
      action();
    } catch (const host::Stopped&) {
      control_.tell(health.reason());
      std::rethrow_exception(health.error());
    }
  }

  MpiProcess& process_;
  MpiControl control_;
};

}  // namespace

std::unique_ptr<World> make_mpi_world(const HostOptions& options) {
  MpiProcess& process = MpiProcess::get(options.timeout_us);
  if (process.size() > max_world)
    throw InvalidArgument(
        fmt::format("a world of {} processes is outside [1, {}]", process.size(), max_world));
  Machine machine = host_machine(process.ranks_on_this_host(), options.link, options.engine);
  if (options.workers_per_rank > 0) machine.workers = options.workers_per_rank;
  return std::make_unique<MpiWorld>(
      std::make_shared<host::WorldState>(options, machine, process.size(), std::vector<int>{process.rank()}),
      process);
}

}  // namespace shingle

#else

namespace shingle {

std::unique_ptr<World> make_mpi_world(const HostOptions&) {
  throw Unsupported("this build has no MPI");
}

}  // namespace shingle
#endif
