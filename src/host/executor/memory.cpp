#include "memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "plan/arena_layout.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::host {
namespace {

void copy_rows(const View& from, const View& to) {
  for (std::int64_t row = 0; row < to.rows; ++row)
    std::memcpy(to.at(row), from.at(row), static_cast<std::size_t>(to.row_bytes()));
}

}  // namespace

std::shared_ptr<void> allocate(std::size_t bytes) {
  constexpr std::size_t line = 64, large_page = std::size_t{2} << 20;
  const std::size_t unit = bytes >= 2 * large_page ? large_page : line;
  const std::size_t rounded = (bytes + unit - 1) / unit * unit + (bytes == 0 ? unit : 0);
  void* memory = std::aligned_alloc(unit, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (unit == large_page) madvise(memory, rounded, MADV_HUGEPAGE);  // an optimisation: may fail
  return {memory, std::free};
}

HostArena::HostArena(const std::vector<int>& local_ranks, std::int64_t bytes) : bytes_(bytes) {
  for (const int rank : local_ranks) {
    const auto index = static_cast<std::size_t>(rank);
    if (memory_.size() <= index) memory_.resize(index + 1);
    memory_[index] = allocate(static_cast<std::size_t>(bytes));
  }
}

Memory::Memory(const Plan& plan, std::vector<int> local_ranks, std::shared_ptr<HostArena> arena)
    : plan_(plan),
      local_(std::move(local_ranks)),
      arena_(std::move(arena)),
      internal_(plan.buffers.size()),
      bound_(plan.buffers.size()) {
  const ArenaLayout layout = arena_layout(plan);
  if (arena_ && layout.bytes > arena_->bytes())
    throw InvalidArgument(fmt::format("the plan needs an arena of {}; this one has {}",
                                      format_bytes(static_cast<double>(layout.bytes)),
                                      format_bytes(static_cast<double>(arena_->bytes()))));
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    internal_[b].resize(plan.ranks.size());
    bound_[b].resize(plan.ranks.size());
    if (plan.buffers[b].role != Role::internal) continue;
    for (const int rank : local_) {
      std::byte*& at = internal_[b][static_cast<std::size_t>(rank)];
      if (arena_ && !plan.buffers[b].flagged) {  // flagged ones last longer than a call
        at = arena_->of(rank) + layout.offset_bytes[b];
        continue;
      }
      owned_.push_back(allocate(static_cast<std::size_t>(plan.buffers[b].bytes(rank))));
      at = static_cast<std::byte*>(owned_.back().get());
    }
  }
}

void Memory::bind(std::uint32_t epoch, int rank, Role role, const MatrixMemory& memory) {
  const std::int32_t buffer = find_buffer(plan_, role);
  if (role == Role::internal || buffer < 0)
    throw InvalidArgument(fmt::format("the plan has no buffer '{}' to bind", name(role)), rank);
  if (rank < 0 || static_cast<std::size_t>(rank) >= plan_.ranks.size())
    throw InvalidArgument(fmt::format("bind: rank {} is outside [0, {})", rank, plan_.ranks.size()), rank);
  const Buffer& planned = plan_.buffers[static_cast<std::size_t>(buffer)];
  const std::int64_t all = planned.rows[static_cast<std::size_t>(rank)];
  const std::int64_t rows = memory.rows < 0 ? all : smaller(memory.rows, all);
  if (memory.row_stride != 0 && memory.row_stride < planned.cols)
    throw InvalidArgument(fmt::format("matrix '{}' of rank {}: row_stride = {} is less than its {} columns",
                                      name(role), rank, memory.row_stride, planned.cols),
                          rank);
  Bound bound{.from = epoch, .dense = static_cast<std::byte*>(memory.data), .rows = rows};
  if (memory.row_stride > planned.cols && rows > 1) {
    bound.user = {bound.dense, rows, planned.cols, memory.row_stride, planned.dtype};
    bound.copy = allocate(static_cast<std::size_t>(bound.user.bytes()));
    bound.dense = static_cast<std::byte*>(bound.copy.get());
  }
  const std::unique_lock lock(mutex_);
  auto& list = bound_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(rank)];
  if (!list.empty() && list.back().from == epoch) list.pop_back();
  list.push_back(std::move(bound));
}

/// Requires the mutex.
const Memory::Bound* Memory::find(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const {
  const auto& list = bound_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(rank)];
  for (auto at = list.rbegin(); at != list.rend(); ++at)
    if (static_cast<std::int32_t>(epoch - at->from) >= 0) return &*at;
  return nullptr;
}

void Memory::require_bound() const {
  const std::shared_lock lock(mutex_);
  for (std::size_t b = 0; b < bound_.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    for (const int rank : local_) {
      const auto& list = bound_[b][static_cast<std::size_t>(rank)];
      if (buffer.role != Role::internal && buffer.bytes(rank) > 0 &&
          (list.empty() || (list.back().dense == nullptr && list.back().rows > 0)))
        throw InvalidArgument(fmt::format("buffer '{}' of rank {} is not bound", buffer.name, rank), rank);
    }
  }
}

template <class Copy>
void Memory::for_each_copy(int rank, std::uint32_t epoch, Copy&& copy) const {
  const std::shared_lock lock(mutex_);
  for (std::size_t b = 0; b < bound_.size(); ++b) {
    const Bound* const bound = find(static_cast<std::int32_t>(b), rank, epoch);
    if (bound == nullptr || bound->copy == nullptr) continue;
    View dense = bound->user;
    dense.data = bound->dense;
    dense.ld = dense.cols;
    copy(plan_.buffers[b].role, bound->user, dense);
  }
}

void Memory::begin(int rank, std::uint32_t epoch) {
  for_each_copy(rank, epoch, [](Role role, const View& user, const View& dense) {
    if (is_input(role)) copy_rows(user, dense);
  });
}

void Memory::end(int rank, std::uint32_t epoch) {
  for_each_copy(rank, epoch, [](Role role, const View& user, const View& dense) {
    if (is_output(role)) copy_rows(dense, user);
  });
  const std::unique_lock lock(mutex_);
  for (auto& buffer : bound_) {
    auto& list = buffer[static_cast<std::size_t>(rank)];
    while (list.size() > 1 && static_cast<std::int32_t>(epoch - list[1].from) >= 0) list.pop_front();
  }
}

std::int64_t Memory::rows(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const {
  const std::shared_lock lock(mutex_);
  const Bound* const bound = find(buffer, rank, epoch);
  return bound != nullptr ? bound->rows : 0;
}

View Memory::buffer(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const {
  const Buffer& b = plan_.buffers[static_cast<std::size_t>(buffer)];
  const std::int64_t rows = b.rows[static_cast<std::size_t>(rank)];
  View view{internal_[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(rank)], rows, b.cols, b.cols,
            b.dtype};
  if (b.role == Role::internal) {
    view.data += static_cast<std::int64_t>(epoch % static_cast<std::uint32_t>(b.depth)) * view.bytes();
    return view;
  }
  const std::shared_lock lock(mutex_);
  const Bound* const bound = find(buffer, rank, epoch);
  if (bound != nullptr) view.data = bound->dense;
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
    if (buffer.role == Role::internal && (!arena_ || buffer.flagged)) bytes += buffer.bytes(rank);
  return bytes;
}

void Memory::poison() {
  // All bits set is a NaN in every element type.
  for (std::size_t b = 0; b < internal_.size(); ++b)
    if (plan_.buffers[b].role == Role::internal)
      for (const int rank : local_)
        std::memset(internal_[b][static_cast<std::size_t>(rank)], 0xff,
                    static_cast<std::size_t>(plan_.buffers[b].bytes(rank)));
}

}  // namespace shingle::host
