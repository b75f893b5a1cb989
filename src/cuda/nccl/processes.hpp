// Processes that communicate over an NCCL communicator, for worlds without another connection.
#pragma once

#include <memory>

#include "backend/processes.hpp"
#include "communicators.hpp"

namespace shingle::cuda {

/// One rank in each process. A failure is not sent to the other processes; they time out. `communicators` and
/// `rank` must outlive the result.
std::unique_ptr<Processes> connect_by_nccl(Communicators& communicators, const LocalRank& rank, int size);

}  // namespace shingle::cuda
