// Work of the host that may take longer than any deadline.
#pragma once

#include <functional>

#include "shingle/backend/backend.hpp"

namespace shingle::cli {

/// Does `work` in each process of the world, and returns when all are done. Meanwhile the processes tell each
/// other again and again that they are there: so a wait for a busy process is told from one for a process
/// that is stopped, which ends by the world's deadline. `work` makes no collective call. Collective.
///
/// Throws what `work` throws. If another process is missing while `work` is still under way, the process says
/// so and exits with 1: work of the host cannot be given up.
void together(World& world, const std::function<void()>& work);

}  // namespace shingle::cli
