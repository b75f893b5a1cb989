// The slots of all ranks, merged.
#pragma once

#include <functional>

#include "host/executor/memory.hpp"

namespace shingle::host {

/// `view`: the memory of a slice of the step.
void merge_slots(const MergeSlots& step, const std::function<View(const Slice&)>& view);

}  // namespace shingle::host
