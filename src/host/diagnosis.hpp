// What to say when a wait has passed its deadline: who waits for what, and who should have come.
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

/// `seen` and `target` are counted within the caller's epoch.
std::string missing_adds(const Engine& engine, const Caller& caller, const CounterRef& counter, std::uint32_t seen,
                         std::uint32_t target);

/// The ranks of a communicator that have not come to the caller's collective or exchange.
std::string missing_ranks(const Engine& engine, const Caller& caller, std::int32_t communicator, std::span<const int> missing);

/// "rank 1, lane communicate, step 2 (await), epoch 0".
std::string describe(const Engine& engine, const Caller& caller);

}  // namespace shingle::host
