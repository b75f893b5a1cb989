// Which params each mechanism takes: the one table behind flags, refusals and tuning.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "shingle/base/result.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// A param as flags name it; several fields of Params may make it up.
struct ParamEntry {
  std::string_view flag;           ///< of the command line, without dashes: "comm-workers"
  bool (*given)(const Params&);    ///< differs from its default
  void (*reset)(Params&);          ///< back to its default
  std::uint32_t mechanisms = 0;    ///< that take it, a bit each
  std::uint32_t for_overlaps = 0;  ///< that also take it of Op::overlap

  bool taken_by(Mechanism mechanism, Op op) const {
    const std::uint32_t takers = op == Op::overlap ? mechanisms | for_overlaps : mechanisms;
    return (takers >> static_cast<unsigned>(mechanism) & 1) != 0;
  }
};
std::span<const ParamEntry> param_table();

/// The reason why a mechanism does not take these params: names the one that is given and those that it
/// takes. Empty where it takes all that are given.
std::optional<Reason> untaken(Mechanism mechanism, Op op, const Params& params);

/// The same params without those that the mechanism does not take.
Params taken(Mechanism mechanism, Op op, Params params);

}  // namespace shingle
