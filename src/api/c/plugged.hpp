// The allocator that frameworks plug in: the registered memory of one context of the process.
#pragma once

#include "shingle/shingle.h"

namespace shingle::c {

/// Forgets a context that is about to end. Memory that a framework holds stays.
void unplug(const shingle_context* context) noexcept;

}  // namespace shingle::c
