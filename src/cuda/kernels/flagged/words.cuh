// Words and copies of flagged memory (kernels/flagged.hpp).
#pragma once

#include "cuda/kernels/flagged.hpp"
#include "cuda/kernels/ptx/memory.cuh"

namespace shingle::cuda {

__device__ __forceinline__ bool has_arrived(const uint4& v) {
  return v.x != flag && v.y != flag && v.z != flag && v.w != flag;
}

__device__ __forceinline__ uint4 without_flags(uint4 v) {
  v.x = v.x == flag ? 0 : v.x;
  v.y = v.y == flag ? 0 : v.y;
  v.z = v.z == flag ? 0 : v.z;
  v.w = v.w == flag ? 0 : v.w;
  return v;
}

inline constexpr std::uint32_t copies = 3;  ///< that turns take one after another

/// Begin of a rank's copy of a turn.
__device__ __forceinline__ char* copy_of(const FlaggedPlace& flagged, int rank, std::uint32_t turn) {
  return flagged.copies[rank] + turn % copies * flagged.copy_bytes;
}

/// Calls store(to) for each of some ranks: the place at a distance from the begin of its copy.
template <class Store>
__device__ __forceinline__ void for_each_copy(const FlaggedPlace& flagged, std::uint32_t ranks,
                                              std::uint32_t turn, std::int64_t distance, Store&& store) {
  for (; ranks != 0; ranks &= ranks - 1)
    store(reinterpret_cast<uint4*>(copy_of(flagged, __ffs(static_cast<int>(ranks)) - 1, turn) + distance));
}

}  // namespace shingle::cuda
