#include "memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "shingle/base/error.hpp"

namespace shingle::host {

std::shared_ptr<void> allocate(std::size_t bytes) {
  constexpr std::size_t line = 64, large_page = std::size_t{2} << 20;
  const std::size_t unit = bytes >= 2 * large_page ? large_page : line;
  const std::size_t rounded = (bytes + unit - 1) / unit * unit + (bytes == 0 ? unit : 0);
  void* memory = std::aligned_alloc(unit, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (unit == large_page) madvise(memory, rounded, MADV_HUGEPAGE);  // an optimisation: may fail
  return {memory, std::free};
}

Memory::Memory(const Plan& plan, std::vector<int> local_ranks)
    : plan_(plan), local_(std::move(local_ranks)), base_(plan.buffers.size()) {
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    base_[b].resize(plan.ranks.size());
    if (plan.buffers[b].role != Role::internal) continue;
    for (const int rank : local_) {
      owned_.push_back(allocate(static_cast<std::size_t>(plan.buffers[b].bytes(rank))));
      base_[b][static_cast<std::size_t>(rank)] = static_cast<std::byte*>(owned_.back().get());
    }
  }
}

void Memory::bind(int rank, Role role, void* memory) {
  const std::int32_t buffer = find_buffer(plan_, role);
  if (role == Role::internal || buffer < 0)
    throw InvalidArgument(fmt::format("the plan has no buffer '{}' to bind", name(role)), rank);
  if (rank < 0 || static_cast<std::size_t>(rank) >= plan_.ranks.size())
    throw InvalidArgument(fmt::format("bind: rank {} is outside [0, {})", rank, plan_.ranks.size()), rank);
  base_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(rank)] = static_cast<std::byte*>(memory);
}

void Memory::require_bound() const {
  for (std::size_t b = 0; b < base_.size(); ++b)
    for (const int rank : local_)
      if (base_[b][static_cast<std::size_t>(rank)] == nullptr && plan_.buffers[b].bytes(rank) > 0)
        throw InvalidArgument(fmt::format("buffer '{}' of rank {} is not bound", plan_.buffers[b].name, rank),
                              rank);
}

View Memory::buffer(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const {
  const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
  const std::int64_t rows = b.rows[static_cast<std::size_t>(rank)];
  View view{base_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(rank)], rows, b.cols, b.cols,
            b.dtype};
  view.data += static_cast<std::int64_t>(epoch % static_cast<std::uint32_t>(b.depth)) * view.bytes();
  return view;
}

View Memory::view(const Slice& slice, std::uint32_t epoch) const {
  View view = buffer(slice.buffer, slice.rank, epoch);
  view.data = view.at(slice.row, slice.col);
  view.rows = slice.rows;
  view.cols = slice.cols;
  return view;
}

std::int64_t Memory::internal_bytes(int rank) const {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan_.buffers)
    if (buffer.role == Role::internal) bytes += buffer.bytes(rank);
  return bytes;
}

void Memory::poison() {
  // All bits set is a NaN in every element type.
  for (std::size_t b = 0; b < base_.size(); ++b)
    if (plan_.buffers[b].role == Role::internal)
      for (const int rank : local_)
        std::memset(base_[b][static_cast<std::size_t>(rank)], 0xff,
                    static_cast<std::size_t>(plan_.buffers[b].bytes(rank)));
}

}  // namespace shingle::host
