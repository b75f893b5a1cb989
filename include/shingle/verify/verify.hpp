// Proof that a plan is well-formed, always finishes, has no race and computes what its problem asks
// (docs/concepts/proofs.md).
#pragma once

#include <cstdint>
#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// What a proof covers; and for a plan that is wrong, the first thing found.
struct Proof {
  bool ok = true;
  std::string rule;  ///< of what failed: "well-formed", "residency", "collectives", "progress", "hardware
                     ///< queue", "race", "content", …; "size": nothing, but the plan is too large to prove
  std::string failure;        ///< one line that names rank, lane, step, rectangle or counter
  std::int64_t segments = 0;  ///< steps and runs of tiles that were ordered, all epochs
  std::int64_t accesses = 0;  ///< rectangles that were checked
  std::int32_t epochs = 0;    ///< unrolled
  /// The most epochs by which a rank may be ahead of another: 1 if each begins an epoch only after all others
  /// have begun the one before; -1 if some rank never hears of another.
  std::int32_t skew = 0;
  std::int64_t work = 0;  ///< what it took, also of a plan that is refused: counted, not timed, so that it is
                          ///< the same everywhere

  explicit operator bool() const noexcept { return ok; }
};

/// Never throws on any plan that plan_from_json can yield. Takes 2 s and 512 MB at most, whatever the plan:
/// one that would take more is refused by the rule "size".
Proof verify(const Plan& plan);

}  // namespace shingle
