// Priorities of the streams of lanes. No CUDA here, so that tests run anywhere.
#pragma once

#include <algorithm>

namespace shingle::cuda {

/// Priority of a lane beside a stream of this priority: the same if it is above the default 0, else 0.
/// Otherwise a kernel of one warp would wait for all CTAs of a GEMM on that stream. An urgent lane has the
/// next higher one. Lower numbers go first; CUDA raises a number below the device's least one to that.
constexpr int lane_priority(int of_stream, bool urgent) {
  return std::min(of_stream, 0) - (urgent ? 1 : 0);
}

}  // namespace shingle::cuda
