// The memory of a plan's buffers, and rectangles of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "shingle/backend/backend.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::host {

/// Uninitialised memory, aligned to cache lines. Large blocks use huge pages.
std::shared_ptr<void> allocate(std::size_t bytes);

/// A rectangle in memory, row-major.
struct View {
  std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;  ///< elements from a row to the next
  DType type = DType::f32;

  std::byte* at(std::int64_t row, std::int64_t col = 0) const {
    return data + (row * ld + col) * static_cast<std::int64_t>(size_bytes(type));
  }
  std::int64_t row_bytes() const { return cols * static_cast<std::int64_t>(size_bytes(type)); }
  std::int64_t bytes() const { return rows * row_bytes(); }
};

/// The staging memory of the local ranks.
class HostArena final : public Arena {
 public:
  HostArena(const std::vector<int>& local_ranks, std::int64_t bytes);
  std::int64_t bytes() const override { return bytes_; }
  void* data(int rank) const override { return of(rank); }
  void extend(std::span<void* const>) override {}  // ranks of the host have no other streams
  std::byte* of(int rank) const {
    return static_cast<std::byte*>(memory_[static_cast<std::size_t>(rank)].get());
  }

 private:
  std::int64_t bytes_;
  std::vector<std::shared_ptr<void>> memory_;  // by rank; null for ranks of other processes
};

/// The buffers of a plan in the memory of the local ranks.
class Memory {
 public:
  /// Internal buffers lie in the arena, or in memory of their own if it is null.
  Memory(const Plan& plan, std::vector<int> local_ranks, std::shared_ptr<HostArena> arena);

  /// Binds a matrix for epochs from `epoch` on. Earlier epochs, which may still run, keep theirs.
  void bind(std::uint32_t epoch, int rank, Role role, const MatrixMemory& memory);
  /// Throws InvalidArgument that names the first unbound user buffer of a local rank.
  void require_bound() const;
  /// Before a rank's epoch: copies inputs that are not dense. After it: copies such outputs back, and forgets
  /// what earlier epochs were bound to.
  void begin(int rank, std::uint32_t epoch);
  void end(int rank, std::uint32_t epoch);
  /// The rectangle in the copy of the buffer that `epoch` uses.
  View view(const Slice& slice, std::uint32_t epoch) const;
  /// Rows that the matrix bound to a user buffer has.
  std::int64_t rows(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const;
  /// The whole buffer on a rank.
  View buffer(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const;

  std::int64_t internal_bytes(int rank) const;
  void poison();

 private:
  /// A user buffer of a rank, from an epoch on.
  struct Bound {
    std::uint32_t from = 0;
    std::byte* dense = nullptr;  ///< what steps use
    std::int64_t rows = 0;
    View user{};  ///< if it is not dense: the user's matrix; `copy` is its dense copy
    std::shared_ptr<void> copy{};
  };
  const Bound* find(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const;
  template <class Copy>
  void for_each_copy(int rank, std::uint32_t epoch, Copy&& copy) const;

  const Plan& plan_;
  std::vector<int> local_;
  std::shared_ptr<HostArena> arena_;
  std::vector<std::vector<std::byte*>> internal_;  // [buffer][rank]
  std::vector<std::shared_ptr<void>> owned_;
  mutable std::shared_mutex mutex_;                    // guards bound_
  std::vector<std::vector<std::deque<Bound>>> bound_;  // [buffer][rank], oldest first
};

}  // namespace shingle::host
