// Verifier: proves that a plan is well-formed, always finishes, has no race and computes the result of its
// problem (docs/concepts/proofs.md).
#pragma once

#include <cstdint>
#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// Extent of a proof. If the plan is wrong, the first failure found.
struct Proof {
  bool ok = true;
  std::string rule;  ///< rule that failed: "well-formed", "residency", "collectives", "progress", "hardware
                     ///< queue", "race", "content", …; "size": no failure, but the plan is too large to prove
  std::string failure;        ///< one line that names rank, lane, step, rectangle or counter
  std::int64_t segments = 0;  ///< steps and runs of tiles that were ordered, in all epochs
  std::int64_t accesses = 0;  ///< rectangles that were checked
  std::int32_t epochs = 0;    ///< number of epochs unrolled
  /// The most epochs by which a rank may be ahead of another. 1 if each rank begins an epoch only after all
  /// others have begun the previous one. -1 if some rank gets no signal from another, not even indirectly.
  std::int32_t skew = 0;
  std::int64_t work = 0;  ///< cost of the proof, also if the plan is refused; counted, not timed, so that it
                          ///< is the same on every machine

  explicit operator bool() const noexcept { return ok; }
};

/// Proves a plan. Never throws on a plan that plan_from_json can yield. Takes 2 s and 512 MB at most: a plan
/// that would take more is refused with the rule "size".
Proof verify(const Plan& plan);

}  // namespace shingle
