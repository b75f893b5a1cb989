// The configurations that a search may give a collective.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "shingle/base/collective_config.hpp"

namespace shingle::cotune {

using Config = CollectiveConfig;

/// How a collective is implemented, as Config has it. Within one such subspace resources are tuned
/// (AutoCCL's divide and conquer).
struct Subspace {
  Algorithm algorithm = Algorithm::automatic;
  Protocol protocol = Protocol::automatic;
  Transport transport = Transport::automatic;
  auto operator<=>(const Subspace&) const = default;
};

/// The axes of a space, in the order of its members.
enum class Axis : std::uint8_t { channels, chunk, subspace, threads };
inline constexpr int axes = 4;

/// A configuration by its place on each axis.
using Point = std::array<std::int32_t, axes>;

/// A grid: one list of values an axis, resources ascending. An axis of the single value 0 is left to the
/// library, so that {} holds its default alone.
struct Space {
  std::vector<std::int32_t> channels{0};
  std::vector<std::int64_t> chunk_bytes{0};
  std::vector<Subspace> subspaces{{}};
  std::vector<std::int32_t> threads{0};

  /// Throws InvalidArgument that names the axis: empty, negative or not ascending values, or subspaces twice.
  void validate() const;
  /// Values of an axis.
  std::int32_t size(Axis axis) const;
  /// Configurations of so many collectives together.
  double size(int collectives) const;
  Config at(const Point& point) const;
};

/// 1, 2, 3, 4, 6, 8, 12, … channels up to `most_channels`, and chunks from 32 KiB to `most_chunk_bytes` in
/// powers of two: each step of an axis is about as large as the one before. Throws InvalidArgument where
/// these are below 1 and 32 KiB.
Space resource_space(std::int32_t most_channels, std::int64_t most_chunk_bytes);

}  // namespace shingle::cotune
