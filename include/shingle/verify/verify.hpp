// Verifier: proves that a plan is well-formed, always finishes, has no race and computes the result of its
// problem (docs/concepts/proofs.md).
#pragma once

#include <cstdint>
#include <string>

#include "shingle/plan/plan.hpp"

namespace shingle {

/// What comes before and after an epoch of the plan.
enum class Setting : std::uint8_t {
  alone,    ///< other epochs of the same plan; nothing else uses its internal buffers
  context,  ///< a context's calls of any plans that are proven so, with no barrier between ranks. All use one
            ///< arena: every internal buffer may be overwritten between two epochs of the plan.
};

/// Extent of a proof. If the plan is wrong, the first failure found.
struct Proof {
  bool ok = true;
  std::string rule;  ///< rule that failed: "well-formed", "residency", "collectives", "progress", "hardware
                     ///< queue", "race", "content", "context", …; "size": no failure, but the plan is too
                     ///< large to prove
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
///
/// In a context the proof is stronger: between two epochs, a rank's internal buffers belong to other calls.
/// No other rank may access them before the rank has begun the epoch, nor after the rank has ended it.
Proof verify(const Plan& plan, Setting setting = Setting::alone);

}  // namespace shingle
