// Host work that may take longer than any deadline.
#pragma once

#include <functional>

#include "shingle/backend/backend.hpp"

namespace shingle::cli {

/// Runs `work` in each process of the world, and returns when all are done. Meanwhile the processes signal
/// each other repeatedly. A wait for a busy process therefore goes on, and a wait for a stopped process ends
/// by the world's deadline. `work` must not make a collective call. Collective.
///
/// Throws what `work` throws. If another process is missing while `work` still runs, the process reports it
/// and exits with 1, because host work cannot be cancelled.
void together(World& world, const std::function<void()>& work);

}  // namespace shingle::cli
