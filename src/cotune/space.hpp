// The configurations that a search may choose for a collective.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shingle/base/collective_config.hpp"

namespace shingle::cotune {

using Config = CollectiveConfig;

/// Implementation of a collective, as in Config. Resources are tuned within one such subspace (AutoCCL's
/// divide and conquer).
struct Subspace {
  Algorithm algorithm = Algorithm::automatic;
  Protocol protocol = Protocol::automatic;
  Transport transport = Transport::automatic;
  auto operator<=>(const Subspace&) const = default;
};

/// The axes of a space, in the order of its members.
enum class Axis : std::uint8_t { channels, chunk, subspace, threads, spared, delay };
inline constexpr int axes = 6;

/// A configuration by its index on each axis.
using Point = std::array<std::int32_t, axes>;

/// A grid: one list of values for each axis, resources ascending. An axis with the single value 0 is left to
/// NCCL, so {} holds only NCCL's own choice.
struct Space {
  std::vector<std::int32_t> channels{0};
  std::vector<std::int64_t> chunk_bytes{0};
  std::vector<Subspace> subspaces{{}};
  std::vector<std::int32_t> threads{0};
  std::vector<std::int32_t> spared{0};
  std::vector<std::int32_t> delay{0};
  Point start{};  ///< where a search begins; the least resources, unless set

  /// Throws InvalidArgument that names the axis if values are empty, negative or not ascending, or subspaces
  /// repeat. Also throws if the start lies outside.
  void validate() const;
  /// Number of values of an axis.
  std::int32_t size(Axis axis) const;
  /// Number of configurations of `collectives` collectives together.
  double size(int collectives) const;
  Config at(const Point& point) const;
};

/// A space with two axes: 1, 2, 3, 4, 6, 8, 12, … channels up to `most_channels`, and chunks from 32 KiB to
/// `most_chunk_bytes`. Chunks are powers of two. The steps of an axis are of similar relative size. Throws
/// InvalidArgument if the limits are below 1 or 32 KiB.
Space resource_space(std::int32_t most_channels, std::int64_t most_chunk_bytes);

}  // namespace shingle::cotune
