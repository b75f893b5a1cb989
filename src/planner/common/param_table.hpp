// Params of each mechanism: the one table for flags, refusals and tuning.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "shingle/base/result.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

/// A param as the command line names it; it may consist of several fields of Params.
struct ParamEntry {
  std::string_view flag;           ///< flag of the command line without dashes, for example "comm-workers"
  bool (*given)(const Params&);    ///< true if the param differs from its default
  void (*reset)(Params&);          ///< restores the default
  std::uint32_t mechanisms = 0;    ///< mechanisms that take the param, one bit each
  std::uint32_t for_overlaps = 0;  ///< mechanisms that also take it for Op::overlap

  bool taken_by(Mechanism mechanism, Op op) const {
    const std::uint32_t takers = op == Op::overlap ? mechanisms | for_overlaps : mechanisms;
    return (takers >> static_cast<unsigned>(mechanism) & 1) != 0;
  }
};
std::span<const ParamEntry> param_table();

/// The reason why a mechanism does not take these params, or nullopt if it takes all that are given. It names
/// the param and the ones that the mechanism takes.
std::optional<Reason> untaken(Mechanism mechanism, Op op, const Params& params);

/// The params without those that the mechanism does not take.
Params taken(Mechanism mechanism, Op op, Params params);

}  // namespace shingle
