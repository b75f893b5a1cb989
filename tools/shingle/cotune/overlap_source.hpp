// What `shingle cotune` tunes: the overlaps of a model, a list, or an iteration that was recorded.
#pragma once

#include <optional>
#include <vector>

#include "shingle/commands.hpp"
#include "workload/overlap_patterns.hpp"
#include "workload/recorded_overlap.hpp"

namespace shingle::cli {

/// Throws InvalidArgument where flags do not name one source, or are for another.
void check_sources(const CotuneFlags& flags);

/// The trace's, which also says the number of ranks and the type of elements, where flags do not; said on
/// stderr if `speaks`. None without a trace.
std::optional<RecordedOverlap> record_of(CotuneFlags& flags, bool speaks);

std::vector<OverlapPattern> patterns_of(const CotuneFlags& flags,
                                        const std::optional<RecordedOverlap>& recorded, int ranks);

}  // namespace shingle::cli
