// What to say when a wait has passed its deadline: who waits for what, who should have come, and what those
// wait for in turn.
#pragma once

#include <span>
#include <string>

#include "engine.hpp"

namespace shingle::host {

/// How much a count grows an epoch.
inline std::uint32_t growth(const Plan& plan, const CounterRef& counter) {
  return plan.counters[static_cast<std::size_t>(counter.counter)]
      .growth[static_cast<std::size_t>(counter.rank)][static_cast<std::size_t>(counter.entry)];
}

/// Of a caller that has waited for a count to reach `target` within its epoch.
std::string missing_adds(const Engine& engine, const Caller& caller, const CounterRef& counter,
                         std::uint32_t target);

/// Of a caller that has waited for ranks of a communicator to come to its collective or exchange. The caller
/// holds no lock.
std::string missing_ranks(const Engine& engine, const Caller& caller, std::int32_t communicator,
                          std::span<const int> missing);

/// What each local lane that waits waits for.
std::string standing(const Engine& engine);

/// "rank 1, lane communicate, step 2 (await), epoch 0".
std::string describe(const Engine& engine, const Caller& caller);

}  // namespace shingle::host
