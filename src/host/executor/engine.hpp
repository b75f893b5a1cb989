// State shared by all threads of an executable.
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
#include "pool.hpp"
#include "progress.hpp"
#include "shingle/host/host.hpp"
#include "streams.hpp"

namespace shingle::host {

/// State shared by all executables of a world.
struct WorldState {
  HostOptions options;
  Machine machine;
  std::vector<int> local_ranks;
  Links links;
  Launchers launchers;
  Health health;
  std::atomic<std::int64_t> executions{0};   ///< number of tiled steps started; workers outlive executables
  std::map<int, std::weak_ptr<Pool>> pools;  ///< by rank, while an executable uses it
  Streams streams{health};  ///< declared last, destroyed first: its threads use the other members

  WorldState(const HostOptions& host_options, Machine host, int ranks, std::vector<int> local)
      : options(host_options),
        machine(std::move(host)),
        local_ranks(std::move(local)),
        links(options.link, ranks),
        launchers(options.engine, ranks) {}
};

struct Engine {
  /// `arena`: null if the internal buffers have memory of their own.
  Engine(std::shared_ptr<WorldState> shared, const Plan& executed, std::shared_ptr<HostArena> arena);

  std::shared_ptr<WorldState> world;
  const Plan plan;
  Memory memory;
  std::vector<std::unique_ptr<CounterTable>> counters;  ///< by rank; null for ranks of other processes
  Products products;
  Progress progress;
  std::unique_ptr<Transport> transport;

  // State of the current run; written only while no lane runs.
  double timeout_us = 0;
  Clock::time_point start;
  std::uint32_t first_epoch = 0;
  bool trace = false;

  /// Launching threads, by the counter and rank that prelaunched engines poll.
  std::map<std::pair<int, int>, int> polled;

  /// Claim word of each work queue, by rank and queue: the epoch in the upper half, the next item in the
  /// lower half.
  std::map<std::pair<int, int>, std::atomic<std::uint64_t>> queues;

  const Health& health() const { return world->health; }
  Clock::time_point deadline() const { return Clock::now() + from_us(timeout_us); }
  double now_us() const { return to_us(Clock::now() - start); }

  /// Submits prelaunched commands to the copy engines. Returns the time when the engines have them.
  Clock::time_point prelaunch();
  /// Awaits `target` of the current epoch. Throws Timeout with the diagnosis, or Stopped.
  void await(const Caller& caller, const CounterRef& counter, std::uint32_t target);
  /// Adds to the counter, or sets a `set` counter, within the current epoch.
  void notify(const Caller& caller, const CounterRef& counter, std::uint32_t value);

  Deliveries deliveries;  ///< declared last, destroyed first: pending deliveries use the other members
};

}  // namespace shingle::host
