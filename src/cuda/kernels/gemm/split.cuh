// Split-K: where a product has fewer tiles than there are SMs, several CTAs share a tile, each with a part of
// K.
#pragma once

#include <cutlass/cutlass.h>

#include "cuda/kernels/count.cuh"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/ptx/shared.cuh"
#include "cuda/kernels/wait.cuh"

namespace shingle::cuda {

/// Consecutive works of the grid are the parts of one tile (of a cluster's tiles), so that they run at the
/// same time.
struct SplitOrder {
  std::int32_t parts;
  std::int32_t cluster;

  CUTLASS_HOST_DEVICE explicit SplitOrder(const GemmArgs& args)
      : parts(args.split.parts), cluster(args.tile.cluster) {}
  CUTLASS_HOST_DEVICE SplitOrder() : parts(1), cluster(1) {}

  /// Of the tile in the plan's order.
  CUTLASS_HOST_DEVICE std::int32_t position(std::int32_t work) const {
    return parts == 1 ? work : work / (cluster * parts) * cluster + work % cluster;
  }
  CUTLASS_HOST_DEVICE std::int32_t part(std::int32_t work) const {
    return parts == 1 ? 0 : work / cluster % parts;
  }
};

/// How the parts of a tile meet: all but the last leave their sums in memory and count; the last one awaits
/// them and adds them in order, so that a result does not depend on who was first. Each warp meets the warps
/// of the other parts that have the same rows, and nobody else. Nobody waits for a work behind its own, so
/// that CTAs which take their works in order cannot wait for each other. Waits have the kernel's deadline.
template <int Rows, int Cols, int Warps>
class SplitSums {
 public:
  CUTLASS_DEVICE SplitSums(const GemmArgs& args, std::int32_t position, int thread)
      : args_(args), position_(position), warp_(thread / 32), lane_(thread % 32) {}

  /// By a warp of any part but the last.
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

  /// By a warp of the last part: its sums are then the tile's. They come through shared memory that is the
  /// warp's, Cols · 32 bytes: registers are taken by its own sums.
  template <class Sums>
  CUTLASS_DEVICE void add_others(Sums& sums, std::uint32_t landing) const {
    const auto others = static_cast<std::uint32_t>(args_.split.parts - 1);
    if (lane_ == 0) {
      wait_for(Target{arrived(), others, 0}, 0, args_.watch);
      *arrived() = 0;  // for the next launch: nobody else counts any more
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
  static constexpr int blocks = Rows / (16 * Warps);  // of 16 rows that a warp has
  static constexpr int words = Cols / 8;              // of 16 bytes that a lane has of a block
  static constexpr int at_once = words / 2;           // that come at the same time
  static_assert(words % 2 == 0, "two halves");

  CUTLASS_DEVICE bool holds(int i) const { return (i * Warps + warp_) * 16 < args_.split.rows; }
  CUTLASS_DEVICE std::uint32_t* arrived() const { return args_.split.arrived + position_ * 8 + warp_; }
  /// The lane's first word of a block; those that follow are a warp's words further.
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
        const uint4 came = ptx::ld_shared_v4(landing + v * 512);  // the lane's own: no barrier
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
