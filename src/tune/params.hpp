// Params of any mechanism, searched by the simulator.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shingle/planner/planner.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle {

struct TuneOptions {
  Params params{};  ///< what is not at its default stays as it is, where the mechanism takes it
  SimOptions simulate{};
  std::function<std::string(const Plan&)> refuses{};  ///< why who is to run a plan cannot; empty: they can
  int passes = 2;  ///< how often all params are gone through, each while the others stay
  std::function<void(const Plan&, double)> tried{};  ///< told of each plan and its predicted time in µs
};

/// The params that were found, as a plan.
struct Tuned {
  Plan plan;
  double us = 0;  ///< predicted
  int tried = 0;  ///< plans that were simulated
};

/// What a param of a mechanism may be: the whole params for each of its values.
struct Choice {
  std::string param;
  std::vector<Params> values;
};

/// Numbers of workers whose collectives the machine's curves know, but for the library's own choice;
/// ascending.
std::vector<std::int32_t> known_comm_workers(const Machine& machine);

/// The params that matter to a mechanism for a problem, each with the values worth trying on this machine
/// while the others are as in `at`: tiles and orders, workers for collectives, groups of waves (by the search
/// of tune/search.hpp, for each tile), chunks, slices, communication tiles, pull or push, movers, variants,
/// prelaunch. What `fixed` sets is left out.
std::vector<Choice> choices(const Problem& problem, const Machine& machine, Mechanism mechanism,
                            const Params& at, const Params& fixed);

/// The fastest params by simulation: one param after the other, the others staying, until a pass over all of
/// them finds nothing faster. Deterministic. A Reason where the mechanism does not serve the problem. Throws
/// as simulate().
Result<Tuned> tune(const Problem& problem, const Machine& machine, Mechanism mechanism, Planner planner,
                   const TuneOptions& options = {});

}  // namespace shingle
