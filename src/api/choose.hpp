// mechanism = auto: the mechanism and params that are predicted to be fastest, and why.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shingle/api/registry.hpp"
#include "tune/cache.hpp"
#include "tune/params.hpp"

namespace shingle {

struct ChooseOptions {
  std::vector<Mechanism> mechanisms{};  ///< to choose from; empty: all
  TuneOptions tune{};
  /// Of predictions, relative: a smaller gain over the sequential plan counts as none.
  double margin = 0.05;
  /// Where found params are kept: what it holds for a problem and mechanism is not searched again, and what
  /// was measured to be the fastest is so, whatever is predicted.
  TuneCache* cache = nullptr;
  bool keep = true;  ///< store there what is found; otherwise the cache is only read
  bool nearest =
      false;  ///< for sizes that the cache does not hold take the params of the nearest, if it has any
  /// Measures a plan, in µs: the best `confirmed` mechanisms, each also with the params that it has untuned,
  /// and the sequential plan, of which the fastest is then chosen, whatever was predicted.
  std::function<double(const Plan&)> measure{};
  int confirmed = 3;
};

/// A mechanism as it was considered.
struct Considered {
  Mechanism mechanism = Mechanism::sequential;
  double us = 0;  ///< predicted, with the best params found; 0: it does not serve the problem
  double measured_us =
      0;               ///< the lesser, where params were found and the planner's are others; 0: not measured
  int tried = 0;       ///< plans that were simulated
  bool known = false;  ///< the params are those that the cache has
  Params params{};     ///< of the best
  std::string reason{};  ///< why it does not serve the problem
};

struct Chosen {
  Plan plan;
  double us = 0;             ///< predicted; measured where it was confirmed
  double sequential_us = 0;  ///< the same of the sequential plan
  bool confirmed = false;
  std::vector<Considered> considered;
  std::string reason;  ///< of the choice, in one line
};

/// The lowest predicted time over all mechanisms, each with its params searched; the sequential plan unless
/// the gain over it is larger than what predictions may be wrong by. A Reason where not even the sequential
/// plan exists. Throws as simulate().
Result<Chosen> choose(const Problem& problem, const Machine& machine, const ChooseOptions& options = {});

/// The plan of a mechanism with what is fixed alone, to be measured beside the one that the search has
/// `found`: a prediction that is wrong about a param draws the search to it. nullopt where it is the same, or
/// not served.
std::optional<Plan> untuned_plan(const Plan& found, const Machine& machine, const TuneOptions& options);

}  // namespace shingle
