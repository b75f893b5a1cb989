#include "shingle/plan/routing.hpp"

#include <fmt/format.h>

#include "shingle/base/error.hpp"

namespace shingle {

Routing::Routing(std::vector<std::vector<std::int32_t>> dest)
    : dest_(std::move(dest)), prefix_(dest_.size()) {
  const std::size_t world = dest_.size();
  for (std::size_t s = 0; s < world; ++s) {
    auto& prefix = prefix_[s];
    prefix.assign((dest_[s].size() + 1) * world, 0);
    for (std::size_t row = 0; row < dest_[s].size(); ++row) {
      const std::int32_t to = dest_[s][row];
      if (to < 0 || static_cast<std::size_t>(to) >= world)
        throw InvalidArgument(fmt::format(
            "routing: row {} of rank {} goes to rank {}, but the world has {} ranks", row, s, to, world));
      for (std::size_t d = 0; d < world; ++d) prefix[(row + 1) * world + d] = prefix[row * world + d];
      ++prefix[(row + 1) * world + static_cast<std::size_t>(to)];
    }
  }
}

std::int64_t Routing::receive_base(int dest, int source) const {
  std::int64_t base = 0;
  for (int s = 0; s < source; ++s) base += count(s, dest);
  return base;
}

std::int64_t Routing::global_base(int source) const {
  std::int64_t base = 0;
  for (int s = 0; s < source; ++s) base += rows(s);
  return base;
}

}  // namespace shingle
