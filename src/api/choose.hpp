// mechanism = auto: the mechanism and params with the lowest predicted time, and the reason for the choice.
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
  std::vector<Mechanism> mechanisms{};  ///< mechanisms to choose from; empty: all
  TuneOptions tune{};
  /// Relative error of predictions: a gain over the sequential plan below this counts as none.
  double margin = 0.05;
  /// Cache of params. A cached problem and mechanism is not searched again. A cached measurement overrides
  /// predictions.
  TuneCache* cache = nullptr;
  bool keep = true;  ///< true: store new results; false: the cache is only read
  bool nearest =
      false;  ///< signal: if the cache lacks a size, take the params of the nearest size in the cache
  /// Measures a plan, in µs. It is called for the best `confirmed` mechanisms, each also with untuned params,
  /// and for the sequential plan. The fastest measured plan is then chosen.
  std::function<double(const Plan&)> measure{};
  int confirmed = 3;
};

/// A mechanism in a choice.
struct Considered {
  Params params{};  ///< of the mechanism: the best that were found
  double us = 0;    ///< predicted, with the best params found; 0: the mechanism does not serve the problem
  double measured_us = 0;  ///< shorter time of the tuned and the untuned plan; 0: not measured
  int tried = 0;           ///< number of plans that were simulated
  bool known = false;      ///< true if the params are from the cache
  std::string reason{};    ///< why the mechanism does not serve the problem
};

struct Chosen {
  Plan plan;
  double us = 0;             ///< predicted; if `confirmed`, measured
  double sequential_us = 0;  ///< time of the sequential plan, predicted or measured as `us`
  bool confirmed = false;
  std::vector<Considered> considered;
  std::string reason;  ///< reason for the choice, on one line
};

/// Chooses the mechanism with the lowest predicted time, each with its params searched. Chooses the
/// sequential plan unless the gain over it exceeds the margin. Returns a Reason if there is no sequential
/// plan. Throws as simulate().
Result<Chosen> choose(const Problem& problem, const Machine& machine, const ChooseOptions& options = {});

/// The plan of a mechanism with only the params that the options fix, to be measured beside the plan `found`
/// by search. If a prediction is wrong about a param, the search favours that param. nullopt if the plan is
/// the same, or is not served.
std::optional<Plan> untuned_plan(const Plan& found, const Machine& machine, const TuneOptions& options);

}  // namespace shingle
