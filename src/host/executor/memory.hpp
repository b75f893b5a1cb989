// The memory of a plan's buffers, and rectangles of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

/// The buffers of a plan in the memory of the local ranks.
class Memory {
 public:
  Memory(const Plan& plan, std::vector<int> local_ranks);

  void bind(int rank, Role role, void* memory);
  /// Throws InvalidArgument that names the first unbound user buffer of a local rank.
  void require_bound() const;
  /// The rectangle in the copy of the buffer that `epoch` uses.
  View view(const Slice& slice, std::uint32_t epoch) const;
  /// The whole buffer on a rank.
  View buffer(std::int32_t buffer, std::int32_t rank, std::uint32_t epoch) const;

  std::int64_t internal_bytes(int rank) const;
  void poison();

 private:
  const Plan& plan_;
  std::vector<int> local_;
  std::vector<std::vector<std::byte*>> base_;  // [buffer][rank]
  std::vector<std::shared_ptr<void>> owned_;
};

}  // namespace shingle::host
