// Params for sizes that were never tuned, from sizes that were: no search when a model runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache.hpp"
#include "shingle/machine/machine.hpp"

namespace shingle {

/// The entry of the nearest problem (FlashOverlap §4.2.2): same mechanism, operator, world, dtype and
/// transposes; the distance is that of (log M·N, log K), as the one says what is sent and the other how long
/// that takes to compute. Nothing where no entry is alike.
std::optional<TuneEntry> nearest(const std::vector<TuneEntry>& entries, const Problem& problem,
                                 Mechanism mechanism);

/// The same partition of another number of waves: groups end at the same parts of the whole. Where there are
/// fewer waves than groups, groups of one wave. Throws InvalidArgument where `waves` or a group is below one.
std::vector<std::int64_t> scale_groups(const std::vector<std::int64_t>& group_waves, std::int64_t waves);

/// Params of `signal` from the nearest entry, its groups scaled to the waves of this problem; nothing where
/// no entry is alike or `signal` cannot serve the problem with that entry's tile. Throws InvalidArgument
/// where the problem is none.
std::optional<Params> reuse(const std::vector<TuneEntry>& entries, const Problem& problem,
                            const Machine& machine);

}  // namespace shingle
