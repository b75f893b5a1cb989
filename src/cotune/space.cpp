#include "space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "shingle/base/error.hpp"

namespace shingle::cotune {
namespace {

constexpr std::int64_t smallest_chunk = std::int64_t{32} << 10;

void check_grid(const auto& values, std::string_view axis) {
  const bool ascends = std::ranges::adjacent_find(values, std::greater_equal{}) == values.end();
  if (values.empty() || values.front() < 0 || !ascends)
    throw InvalidArgument(fmt::format("{} must ascend, from at least 0", axis));
}

}  // namespace

void Space::validate() const {
  check_grid(channels, "channels");
  check_grid(chunk_bytes, "chunk sizes");
  check_grid(threads, "threads");
  check_grid(spared, "spared workers");
  check_grid(delay, "delays");
  if (subspaces.empty() || std::set(subspaces.begin(), subspaces.end()).size() < subspaces.size())
    throw InvalidArgument("subspaces must be a list without repetition, and not empty");
  for (int axis = 0; axis < axes; ++axis)
    if (const auto place = start[static_cast<std::size_t>(axis)];
        place < 0 || place >= size(static_cast<Axis>(axis)))
      throw InvalidArgument(fmt::format("start {} is outside the {} values of axis {}", place,
                                        size(static_cast<Axis>(axis)), axis));
}

std::int32_t Space::size(Axis axis) const {
  const std::size_t sizes[] = {channels.size(), chunk_bytes.size(), subspaces.size(),
                               threads.size(),  spared.size(),      delay.size()};
  return static_cast<std::int32_t>(sizes[static_cast<std::size_t>(axis)]);
}

double Space::size(int collectives) const {
  double one = 1;
  for (int axis = 0; axis < axes; ++axis) one *= size(static_cast<Axis>(axis));
  return std::pow(one, collectives);
}

Config Space::at(const Point& point) const {
  const auto [channel, chunk, subspace, thread, spare, late] = point;
  const Subspace& of = subspaces.at(static_cast<std::size_t>(subspace));
  return {.channels = channels.at(static_cast<std::size_t>(channel)),
          .chunk_bytes = chunk_bytes.at(static_cast<std::size_t>(chunk)),
          .threads = threads.at(static_cast<std::size_t>(thread)),
          .algorithm = of.algorithm,
          .protocol = of.protocol,
          .transport = of.transport,
          .spared = spared.at(static_cast<std::size_t>(spare)),
          .delay = delay.at(static_cast<std::size_t>(late))};
}

Space resource_space(std::int32_t most_channels, std::int64_t most_chunk_bytes) {
  if (most_channels < 1 || most_chunk_bytes < smallest_chunk)
    throw InvalidArgument(
        fmt::format("most channels = {} must be at least 1, and most chunk bytes = {} at "
                    "least {}",
                    most_channels, most_chunk_bytes, smallest_chunk));
  Space space;
  space.channels.clear();
  for (std::int64_t power = 1; power <= most_channels; power *= 2)
    for (const std::int64_t value : {power, power * 3 / 2})
      if (value <= most_channels && (space.channels.empty() || value > space.channels.back()))
        space.channels.push_back(static_cast<std::int32_t>(value));
  space.chunk_bytes.clear();
  for (std::int64_t bytes = smallest_chunk; bytes <= most_chunk_bytes; bytes *= 2)
    space.chunk_bytes.push_back(bytes);
  return space;
}

}  // namespace shingle::cotune
