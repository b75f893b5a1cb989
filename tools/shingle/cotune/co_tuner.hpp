// Searches of `shingle cotune`: by simulation of a machine, or on a real world.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shingle/commands.hpp"
#include "tune/co_tuning.hpp"
#include "workload/overlap_patterns.hpp"

namespace shingle::cli {

/// A pattern with the result of each method; "lagom" is last.
struct Found {
  OverlapPattern pattern;
  std::vector<std::pair<cotune::Method, CoTuned>> by;

  const CoTuned& ours() const { return by.back().second; }
  double us(cotune::Method method) const {
    for (const auto& [known, found] : by)
      if (known == method) return found.measured.makespan_us;
    return 0;
  }
};

class CoTuner {
 public:
  CoTuner(const CotuneFlags& flags, const ProcessLaunch& launch);

  const Machine& machine() const { return machine_; }
  int ranks() const { return ranks_; }
  std::string_view source() const { return world_ ? "measured" : "predicted"; }
  std::string title() const;

  /// Runs all methods. Collectives that are alike, as in co_tune(), share a configuration. Collective over
  /// the world's processes if there is a world.
  ///
  /// On a world, "lagom" also has what is predicted for its machine. What it found is compared in turns with
  /// NCCL's own choice, which stays unless that confirms a gain, also if the search did not end.
  Found search(OverlapPattern pattern, bool exhaustive, const std::vector<int>& alike) const;

 private:
  std::vector<CollectiveConfig> predicted(const Workload& workload, const std::vector<int>& alike) const;

  std::unique_ptr<World> world_;
  Machine machine_;
  int ranks_ = 0;
  cotune::Space space_;
  cotune::Options options_;
};

}  // namespace shingle::cli
