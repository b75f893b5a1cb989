// A world of threads.
#include <fmt/format.h>

#include <numeric>

#include "host/transport/transport_threads.hpp"
#include "host_world.hpp"
#include "shingle/base/error.hpp"

namespace shingle {
namespace {

class ThreadWorld final : public host::HostWorld {
 public:
  using HostWorld::HostWorld;
  Capabilities capabilities() const override {
    return {.remote_memory = true, .native_dtypes = host::native_dtypes()};
  }
  void barrier() override {}
  std::vector<double> all_max(std::vector<double> values) override { return values; }

 protected:
  std::unique_ptr<host::Transport> connect(host::Engine& engine) override {
    return std::make_unique<host::ThreadTransport>(engine);
  }
};

}  // namespace

std::unique_ptr<World> make_thread_world(int ranks, const HostOptions& options) {
  if (ranks < 1 || ranks > max_world)
    throw InvalidArgument(fmt::format("a world of {} ranks is outside [1, {}]", ranks, max_world));
  Machine machine = host_machine(ranks, options.link, options.engine);
  if (options.workers_per_rank > 0) machine.workers = options.workers_per_rank;
  std::vector<int> local(static_cast<std::size_t>(ranks));
  std::iota(local.begin(), local.end(), 0);
  return std::make_unique<ThreadWorld>(
      std::make_shared<host::WorldState>(options, machine, ranks, std::move(local)), ranks);
}

}  // namespace shingle
