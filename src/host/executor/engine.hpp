// What all threads of an executable share.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "copy_queue.hpp"
#include "counters.hpp"
#include "health.hpp"
#include "host/compute/products.hpp"
#include "host/transport/deliveries.hpp"
#include "host/transport/link.hpp"
#include "host/transport/transport.hpp"
#include "memory.hpp"
#include "progress.hpp"
#include "shingle/host/host.hpp"

namespace shingle::host {

/// What all executables of a world share.
struct WorldState {
  HostOptions options;
  Machine machine;
  std::vector<int> local_ranks;
  Links links;
  Launchers launchers;
  Health health;

  WorldState(const HostOptions& host_options, Machine host, int ranks, std::vector<int> local)
      : options(host_options),
        machine(std::move(host)),
        local_ranks(std::move(local)),
        links(options.link, ranks),
        launchers(options.engine, ranks) {}
};

struct Engine {
  Engine(std::shared_ptr<WorldState> shared, const Plan& executed);

  std::shared_ptr<WorldState> world;
  const Plan plan;
  Memory memory;
  std::vector<std::unique_ptr<CounterTable>> counters;  ///< by rank; null for ranks of other processes
  Products products;
  Progress progress;
  std::unique_ptr<Transport> transport;

  // Of the current run; written while no lane runs.
  double timeout_us = 0;
  Clock::time_point start;
  std::uint32_t first_epoch = 0;
  bool trace = false;

  /// Launching threads by the counter and rank that prelaunched engines poll.
  std::map<std::pair<int, int>, int> polled;

  std::atomic<std::int64_t> executions{0};  ///< of tiled steps
  /// Items that are claimed of a shared pass, by rank and queue: the epoch in the upper half, the next in the
  /// lower.
  std::map<std::pair<int, int>, std::atomic<std::uint64_t>> queues;

  const Health& health() const { return world->health; }
  Clock::time_point deadline() const { return Clock::now() + from_us(timeout_us); }
  double now_us() const { return to_us(Clock::now() - start); }

  /// Hands what is prelaunched to the copy engines; when they have it.
  Clock::time_point prelaunch();
  /// Awaits `target` of the current epoch. Throws Timeout with the diagnosis, or Stopped.
  void await(const Caller& caller, const CounterRef& counter, std::uint32_t target);
  /// Adds, or for a `set` counter sets, within the current epoch.
  void notify(const Caller& caller, const CounterRef& counter, std::uint32_t value);

  Deliveries deliveries;  ///< last: what is under way uses the rest
};

}  // namespace shingle::host
