#include "workspace.hpp"

#include "base/parallel.hpp"
#include "check/judge.hpp"

namespace shingle {

Workspace::Workspace(World& world, const Inputs& inputs)
    : Workspace(world, inputs, [&](int rank, Role role) {
        return world.allocate(rank, static_cast<std::size_t>(bytes_of(inputs.work(), role, rank)));
      }) {}

Workspace::Workspace(World& world, const Inputs& inputs, Context& context)
    : Workspace(world, inputs, [&](int rank, Role role) {
        std::int64_t most = 0;  // shards may have different sizes
        for (int other = 0; other < world.size(); ++other)
          most = larger(most, bytes_of(inputs.work(), role, other));
        return context.allocate(rank, most);
      }) {}

Workspace::Workspace(World& world, const Inputs& inputs, const Allocate& allocate)
    : world_(world), work_(inputs.work()) {
  for (const int rank : world.local_ranks())
    for (const Role role : roles_of(work_)) buffers_[{rank, role}] = allocate(rank, role);
  for (const auto& [key, buffer] : buffers_)
    if (is_input(key.second)) write_input(world, inputs, key.first, key.second, buffer.data());
}

void Workspace::bind(Operator& op) const {
  for (const auto& [key, buffer] : buffers_) op.bind(key.first, key.second, buffer.data());
}

std::vector<Argument> Workspace::arguments(const Problem& problem) const {
  std::vector<Argument> all;
  for (const auto& [key, buffer] : buffers_)
    all.push_back({key.first,
                   key.second,
                   {buffer.data(), shape_of(problem, key.second, key.first), dtype_of(problem, key.second)}});
  return all;
}

void Workspace::poison_outputs() {
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

Check Workspace::check(const RowSample& sample) {
  std::vector<Output> found;
  for (const auto& [key, buffer] : buffers_) {
    const auto [rank, role] = key;
    if (!is_output(role)) continue;
    auto& copy = copies_[key];
    if (is_number(role)) {
      copy.resize(buffer.bytes());
      world_.download(rank, copy.data(), buffer.data(), copy.size());
      found.push_back({rank, role, copy.data()});
      continue;
    }
    const auto rows = sample.rows(rank);
    const std::size_t row_bytes =
        static_cast<std::size_t>(shape_of(work_, role, rank).cols) * size_bytes(dtype_of(work_, role));
    copy.resize(rows.size() * row_bytes);
    for (std::size_t i = 0; i < rows.size(); ++i)
      world_.download(
          rank, copy.data() + i * row_bytes,
          static_cast<const std::byte*>(buffer.data()) + static_cast<std::size_t>(rows[i]) * row_bytes,
          row_bytes);
    found.push_back({rank, role, copy.data()});
  }
  return sample.check(found);
}

void write_input(World& world, const Inputs& inputs, int rank, Role role, void* memory) {
  constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;
  const Shape shape = shape_of(inputs.work(), role, rank);
  const std::int64_t row_bytes =
      shape.cols * static_cast<std::int64_t>(size_bytes(dtype_of(inputs.work(), role)));
  const std::int64_t piece_rows = larger(piece_bytes / larger(row_bytes, 1), 1);
  const bool reachable = world.capabilities().host_accessible;
  parallel_for(static_cast<std::size_t>(ceil_div(shape.rows, piece_rows)), [&](std::size_t piece) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * piece_rows;
    const std::int64_t rows = smaller(piece_rows, shape.rows - first);
    std::byte* to = static_cast<std::byte*>(memory) + first * row_bytes;
    if (reachable) return inputs.write_rows(rank, role, first, rows, to);
    std::vector<std::byte> staged(static_cast<std::size_t>(rows * row_bytes));
    inputs.write_rows(rank, role, first, rows, staged.data());
    world.upload(rank, to, staged.data(), staged.size());
  });
}

}  // namespace shingle
