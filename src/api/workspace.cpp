#include "shingle/api/workspace.hpp"

#include <cstring>
#include <thread>

namespace shingle {

Workspace::Workspace(World& world, const Inputs& inputs) {
  const Problem& problem = inputs.problem();
  for (const int rank : world.local_ranks())
    for (const Role role : roles_of(problem))
      buffers_[{rank, role}] = world.allocate(rank, static_cast<std::size_t>(bytes_of(problem, role, rank)));
  // A thread a rank: the formulas take a while for large matrices.
  std::vector<std::jthread> writers;
  for (const int rank : world.local_ranks())
    writers.emplace_back([&, rank] {
      for (const Role role : roles_of(problem))
        if (is_input(role)) inputs.write(rank, role, buffers_.at({rank, role}).data());
    });
}

void Workspace::bind(Operator& op) const {
  for (const auto& [key, buffer] : buffers_) op.bind(key.first, key.second, buffer.data());
}

void Workspace::poison_outputs() {
  // All bits set is a NaN in every dtype.
  for (auto& [key, buffer] : buffers_)
    if (is_output(key.second) && buffer.bytes() > 0) std::memset(buffer.data(), 0xff, buffer.bytes());
}

std::vector<Output> Workspace::outputs() const {
  std::vector<Output> found;
  for (const auto& [key, buffer] : buffers_)
    if (is_output(key.second)) found.push_back({key.first, key.second, buffer.data()});
  return found;
}

}  // namespace shingle
