#include "shingle/plan/routing.hpp"

#include <fmt/format.h>

#include "shingle/base/error.hpp"

namespace shingle {

Routing::Routing(std::vector<std::vector<std::int32_t>> dest)
    : dest_(std::move(dest)), prefix_(dest_.size()), bases_{0} {
  const std::size_t world = dest_.size();
  for (std::size_t s = 0; s < world; ++s) {
    auto& prefix = prefix_[s];
    std::vector<std::int32_t> counts(world, 0);
    prefix.reserve((dest_[s].size() / block_rows + 1) * world);
    for (std::size_t row = 0; row < dest_[s].size(); ++row) {
      if (row % block_rows == 0) prefix.insert(prefix.end(), counts.begin(), counts.end());
      const std::int32_t to = dest_[s][row];
      if (to < 0 || static_cast<std::size_t>(to) >= world)
        throw InvalidArgument(fmt::format(
            "routing: row {} of rank {} goes to rank {}, but the world has {} ranks", row, s, to, world));
      ++counts[static_cast<std::size_t>(to)];
    }
    if (dest_[s].size() % block_rows == 0) prefix.insert(prefix.end(), counts.begin(), counts.end());
    bases_.push_back(bases_.back() + static_cast<std::int64_t>(dest_[s].size()));
  }
}

std::int64_t Routing::receive_base(int dest, int source) const {
  std::int64_t base = 0;
  for (int s = 0; s < source; ++s) base += count(s, dest);
  return base;
}

}  // namespace shingle
