// Split-K: CTAs share tiles, each with a part of K.
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/ptx/shared.cuh"
#include "cuda/kernels/wait.cuh"

namespace shingle::cuda {

/// Adds the parts of a tile. All parts but the last store their sums to memory and notify. The last part
/// awaits them and adds them in order, so that the result does not depend on timing. Each warp synchronises
/// only with warps of other parts that have the same rows.
///
/// A part waits only for works of CTAs with smaller indices, and these works come before any that waits. CTAs
/// start in the order of their indices, so they cannot deadlock (deal()). Waits have the kernel's deadline.
///
/// Memory order: __syncwarp, then a release at GPU scope by one lane; wait_for() by one lane, then
/// __syncwarp. An early kernel stores no sums before the kernels ahead of it have ended, which may have the
/// same memory.
template <int Rows, int Cols, int Warps>
class SplitSums {
 public:
  CUTLASS_DEVICE SplitSums(const GemmArgs& args, WorkCode work, int thread)
      : args_(args),
        work_(work),
        tile_(work.position() - args.split.begin),
        warp_(thread / 32),
        lane_(thread % 32) {}

  /// Called by a warp of any part but the last.
  template <class Sums>
  CUTLASS_DEVICE void leave(const Sums& sums) const {
    ptx::await_prerequisites();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < blocks; ++i) {
      if (!holds(i)) continue;
      float4* const to = at(work_.part(), i);
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
    const std::int32_t others = work_.others();
    if (lane_ == 0) {
      wait_for(Target{arrived(), static_cast<std::uint32_t>(others), 0}, 0, args_.watch);
      *arrived() = 0;  // for the next launch: no other warp adds any more
    }
    __syncwarp();
    CUTLASS_PRAGMA_NO_UNROLL
    for (std::int32_t part = 0; part < others; ++part) {
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
  CUTLASS_DEVICE std::uint32_t* arrived() const { return args_.split.arrived + tile_ * 8 + warp_; }
  /// The lane's first word of a block. Each next word is 32 words further.
  CUTLASS_DEVICE float4* at(std::int32_t part, int i) const {
    const std::int64_t tile = std::int64_t{tile_} * args_.split.others + part;
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
  const WorkCode work_;
  const std::int32_t tile_;  // from the first shared one on
  const int warp_, lane_;
};

}  // namespace shingle::cuda
