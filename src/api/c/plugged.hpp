// The allocator that frameworks plug in: the registered memory of one context of the process.
#pragma once

#include "shingle/shingle.h"

namespace shingle::c {

/// Forgets a context that is about to end, and all memory that it has given.
void unplug(const shingle_context* context) noexcept;

}  // namespace shingle::c
