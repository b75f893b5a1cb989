// Params of any mechanism, searched by the simulator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

struct TuneOptions {
  ParamList params{};  ///< stay fixed, if the mechanism takes them
  SimOptions simulate{};
  /// Reason the backend rejects a plan, or empty; null if it accepts every plan
  std::function<std::string(const Plan&)> refuses{};
  int passes = 2;  ///< max. passes over all params; each pass varies one param at a time
  /// Events of all simulations, after which no further params are tried: those of products of very many tiles
  /// would take minutes.
  std::int64_t most_events = 40'000'000;
  std::function<void(const Plan&, double)> tried{};  ///< receives each plan and its predicted time in µs
};

/// The params found, as a plan.
struct Tuned {
  Plan plan;
  double us = 0;  ///< predicted
  int tried = 0;  ///< plans that were simulated
};

/// Candidate values of one param of a mechanism: the whole params for each value.
struct Choice {
  std::string param;
  std::vector<Params> values;
};

/// The params that matter to a mechanism for a problem, each with the values worth trying on this machine.
/// The other params are as in `at`. They include tiles and orders, workers for collectives, chunks, slices,
/// communication tiles, pull or push, movers, variants, and prelaunch. They also include groups of waves,
/// searched for each tile (tune/search.hpp). Params that `fixed` sets are left out.
std::vector<Choice> choices(const Problem& problem, const Machine& machine, const Params& at,
                            const Params& fixed);

/// Finds the fastest params by simulation. It varies one param at a time until a pass over all of them finds
/// nothing faster. Deterministic. Returns a Reason if the mechanism does not serve the problem. Throws as
/// simulate().
Result<Tuned> tune(const Problem& problem, const Machine& machine, Mechanism mechanism,
                   const TuneOptions& options = {});

}  // namespace shingle
