// Groups of NCCL calls.
#pragma once

#include "cuda/nccl/api.hpp"
#include "cuda/raii/check.hpp"

namespace shingle::cuda {

/// Makes calls of one NCCL group. The group is also closed when a call throws: later groups of this thread,
/// also those of the program, would else become part of it, and never begin.
template <class Calls>
void in_group(Calls calls) {
  check(nccl().ncclGroupStart(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    nccl().ncclGroupEnd();
    throw;
  }
  check(nccl().ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace shingle::cuda
