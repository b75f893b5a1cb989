// NCCL's functions, opened at run time.
#pragma once

#include <nccl.h>

namespace shingle::cuda {

#define SHINGLE_NCCL_FUNCTIONS(X) \
  X(ncclAllGather)                \
  X(ncclAllReduce)                \
  X(ncclCommAbort)                \
  X(ncclCommCount)                \
  X(ncclCommCuDevice)             \
  X(ncclCommDestroy)              \
  X(ncclCommGetAsyncError)        \
  X(ncclCommInitAll)              \
  X(ncclCommInitRankConfig)       \
  X(ncclCommSplit)                \
  X(ncclCommUserRank)             \
  X(ncclGetErrorString)           \
  X(ncclGetLastError)             \
  X(ncclGetUniqueId)              \
  X(ncclGetVersion)               \
  X(ncclGroupEnd)                 \
  X(ncclGroupStart)               \
  X(ncclRecv)                     \
  X(ncclReduceScatter)            \
  X(ncclSend)

struct NcclApi {
#define SHINGLE_DECLARE(function) decltype(&::function) function = nullptr;
  SHINGLE_NCCL_FUNCTIONS(SHINGLE_DECLARE)
#undef SHINGLE_DECLARE
};

/// Throws Unsupported if there is no NCCL, or only one older than the header that this build used.
const NcclApi& nccl();

}  // namespace shingle::cuda
