// Split-K: if a product has fewer tiles than there are SMs, several CTAs share a tile, each with a part of K.
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/ptx/shared.cuh"
#include "cuda/kernels/wait.cuh"

namespace shingle::cuda {

/// Consecutive works are the parts of one tile (or of a cluster's tiles), so that they run at the same time.
struct SplitOrder {
  std::int32_t parts;
  std::int32_t cluster;

  CUTLASS_HOST_DEVICE explicit SplitOrder(const GemmArgs& args)
      : parts(args.split.parts), cluster(args.tile.cluster) {}
  CUTLASS_HOST_DEVICE SplitOrder() : parts(1), cluster(1) {}

  /// Position of the work's tile in the plan's order.
  CUTLASS_HOST_DEVICE std::int32_t position(std::int32_t work) const {
    return parts == 1 ? work : work / (cluster * parts) * cluster + work % cluster;
  }
  CUTLASS_HOST_DEVICE std::int32_t part(std::int32_t work) const {
    return parts == 1 ? 0 : work / cluster % parts;
  }
};

/// Adds the parts of a tile. All parts but the last store their sums to memory and notify. The last part
/// awaits them and adds them in order, so that the result does not depend on timing. Each warp synchronises
/// only with warps of other parts that have the same rows.
///
/// A part waits only for works with smaller indices. CTAs take their works in order, so they cannot deadlock.
/// Waits have the kernel's deadline.
///
/// Memory order: __syncwarp, then a release at GPU scope by one lane; wait_for() by one lane, then
/// __syncwarp.
template <int Rows, int Cols, int Warps>
class SplitSums {
 public:
  CUTLASS_DEVICE SplitSums(const GemmArgs& args, std::int32_t position, int thread)
      : args_(args), position_(position), warp_(thread / 32), lane_(thread % 32) {}

  /// Called by a warp of any part but the last.
  template <class Sums>
  CUTLASS_DEVICE void leave(std::int32_t part, const Sums& sums) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < blocks; ++i) {
      if (!holds(i)) continue;
      float4* const to = at(part, i);
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < words; ++v) {
        const auto* x = &sums(i * (Cols / 2) + 4 * v);
        to[v * 32] = {x[0], x[1], x[2], x[3]};
      }
    }
    __syncwarp();
    if (lane_ == 0) add_release(arrived(), 1, false);
  }

  /// Called by a warp of the last part: makes its sums those of the whole tile. The other sums pass through
  /// Cols · 32 bytes of shared memory of this warp, as its own sums fill the registers.
  template <class Sums>
  CUTLASS_DEVICE void add_others(Sums& sums, std::uint32_t landing) const {
    const auto others = static_cast<std::uint32_t>(args_.split.parts - 1);
    if (lane_ == 0) {
      wait_for(Target{arrived(), others, 0}, 0, args_.watch);
      *arrived() = 0;  // for the next launch: no other warp adds any more
    }
    __syncwarp();
    CUTLASS_PRAGMA_NO_UNROLL
    for (std::int32_t part = 0; part < args_.split.parts - 1; ++part) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < blocks; ++i)
        if (holds(i)) add(at(part, i), i, sums, landing + lane_ * 16);
    }
  }

 private:
  static constexpr int blocks = Rows / (16 * Warps);  // blocks of 16 rows of a warp
  static constexpr int words = Cols / 8;              // words of 16 bytes of a lane in a block
  static constexpr int at_once = words / 2;           // words loaded together
  static_assert(words % 2 == 0, "two halves");

  CUTLASS_DEVICE bool holds(int i) const { return (i * Warps + warp_) * 16 < args_.split.rows; }
  CUTLASS_DEVICE std::uint32_t* arrived() const { return args_.split.arrived + position_ * 8 + warp_; }
  /// The lane's first word of a block. Each next word is 32 words further.
  CUTLASS_DEVICE float4* at(std::int32_t part, int i) const {
    const std::int64_t tile = std::int64_t{position_} * (args_.split.parts - 1) + part;
    const std::int64_t block = tile * (args_.split.rows / 16) + i * Warps + warp_;
    return reinterpret_cast<float4*>(args_.split.sums) + block * (words * 32) + lane_;
  }
  template <class Sums>
  CUTLASS_DEVICE static void add(const float4* from, int i, Sums& sums, std::uint32_t landing) {
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < words; first += at_once) {
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < at_once; ++v) ptx::copy_async(landing + v * 512, from + (first + v) * 32);
      ptx::await_copies();
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < at_once; ++v) {
        const uint4 came = ptx::ld_shared_v4(landing + v * 512);  // copied by this lane: no barrier needed
        auto* x = &sums(i * (Cols / 2) + 4 * (first + v));
        x[0] += __uint_as_float(came.x), x[1] += __uint_as_float(came.y);
        x[2] += __uint_as_float(came.z), x[3] += __uint_as_float(came.w);
      }
    }
  }

  const GemmArgs& args_;
  const std::int32_t position_;
  const int warp_, lane_;
};

}  // namespace shingle::cuda
