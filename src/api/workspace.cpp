#include "shingle/api/workspace.hpp"

#include <future>

namespace shingle {

Workspace::Workspace(World& world, const Inputs& inputs) : world_(world) {
  const Problem& problem = inputs.problem();
  for (const int rank : world.local_ranks())
    for (const Role role : roles_of(problem))
      buffers_[{rank, role}] = world.allocate(rank, static_cast<std::size_t>(bytes_of(problem, role, rank)));
  // A thread a rank: the formulas take a while for large matrices.
  std::vector<std::future<void>> writers;
  for (const int rank : world.local_ranks())
    writers.push_back(std::async(std::launch::async, [&, rank] {
      for (const Role role : roles_of(problem))
        if (is_input(role)) write_input(world, inputs, rank, role, buffers_.at({rank, role}).data());
    }));
  for (std::future<void>& writer : writers) writer.get();
}

void Workspace::bind(Operator& op) const {
  for (const auto& [key, buffer] : buffers_) op.bind(key.first, key.second, buffer.data());
}

void Workspace::poison_outputs() {
  // All bits set is a NaN in every dtype.
  for (auto& [key, buffer] : buffers_)
    if (is_output(key.second)) world_.fill(key.first, buffer.data(), 0xff, buffer.bytes());
}

std::vector<Output> Workspace::outputs() {
  const bool reachable = world_.capabilities().host_accessible;
  std::vector<Output> found;
  for (const auto& [key, buffer] : buffers_) {
    if (!is_output(key.second)) continue;
    const void* memory = buffer.data();
    if (!reachable) {
      auto& copy = copies_[key];
      copy.resize(buffer.bytes());
      world_.download(key.first, copy.data(), memory, copy.size());
      memory = copy.data();
    }
    found.push_back({key.first, key.second, memory});
  }
  return found;
}

void write_input(World& world, const Inputs& inputs, int rank, Role role, void* memory) {
  if (world.capabilities().host_accessible) return inputs.write(rank, role, memory);
  std::vector<std::byte> staged(static_cast<std::size_t>(bytes_of(inputs.problem(), role, rank)));
  inputs.write(rank, role, staged.data());
  world.upload(rank, memory, staged.data(), staged.size());
}

}  // namespace shingle
