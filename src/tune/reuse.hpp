// Params for sizes that were never tuned, derived from tuned sizes, so that running a model needs no search.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache.hpp"
#include "shingle/machine/machine.hpp"

namespace shingle {

/// The entry of the nearest problem (FlashOverlap §4.2.2) with the same mechanism, operator, world, dtype and
/// transposes. The distance is that of (log M·N, log K): M·N sets what is sent, and K how long that takes to
/// compute. Nothing if no entry matches.
std::optional<TuneEntry> nearest(const std::vector<TuneEntry>& entries, const Problem& problem,
                                 Mechanism mechanism);

/// Scales a partition to another number of waves: groups end at the same fractions of the whole. With fewer
/// waves than groups, every group is one wave. Throws InvalidArgument if `waves` or a group is below one.
std::vector<std::int64_t> scale_groups(const std::vector<std::int64_t>& group_waves, std::int64_t waves);

/// Params of `signal` from the nearest entry, with groups scaled to the waves of this problem. Nothing if no
/// entry matches, or if `signal` cannot serve the problem with that entry's tile. Throws InvalidArgument if
/// the problem is invalid.
std::optional<SignalParams> reuse(const std::vector<TuneEntry>& entries, const Problem& problem,
                                  const Machine& machine);

}  // namespace shingle
