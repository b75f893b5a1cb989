// What `shingle cotune` tunes: the overlaps of a model, a list, or a recorded iteration.
#pragma once

#include <optional>
#include <vector>

#include "shingle/commands.hpp"
#include "workload/overlap_patterns.hpp"
#include "workload/recorded_overlap.hpp"

namespace shingle::cli {

/// Throws InvalidArgument unless flags name exactly one source and fit it.
void check_sources(const CotuneFlags& flags);

/// The overlap of the trace; nothing without a trace. The trace also sets the number of ranks and the element
/// type if flags do not. If `speaks`, prints these to stderr.
std::optional<RecordedOverlap> record_of(CotuneFlags& flags, bool speaks);

std::vector<OverlapPattern> patterns_of(const CotuneFlags& flags,
                                        const std::optional<RecordedOverlap>& recorded, int ranks);

}  // namespace shingle::cli
