// Processes that meet over a communicator, where nothing else connects them.
#pragma once

#include <memory>

#include "backend/processes.hpp"
#include "communicators.hpp"

namespace shingle::cuda {

/// One rank a process. What fails in one, others notice by its absence alone. `communicators` and `rank` have
/// to outlive it.
std::unique_ptr<Processes> connect_by_nccl(Communicators& communicators, const LocalRank& rank, int size);

}  // namespace shingle::cuda
