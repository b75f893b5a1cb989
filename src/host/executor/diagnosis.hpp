// The message of a wait that has passed its deadline. It names the waiting lane, the missing adds or ranks,
// and what the late ranks wait for in turn.
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

/// Diagnosis for a caller that waits for a count to reach `target` within its epoch.
std::string missing_adds(const Engine& engine, const Caller& caller, const CounterRef& counter,
                         std::uint32_t target);

/// Diagnosis for a caller that waits for `missing` ranks of a communicator at a collective or exchange. The
/// caller holds no lock.
std::string missing_ranks(const Engine& engine, const Caller& caller, std::int32_t communicator,
                          std::span<const int> missing);

/// What each blocked local lane waits for.
std::string standing(const Engine& engine);

/// Returns, for example, "rank 1, lane communicate, step 2 (await), epoch 0".
std::string describe(const Engine& engine, const Caller& caller);

}  // namespace shingle::host
