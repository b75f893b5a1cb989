// Blocks of a range of memory: which are taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

namespace shingle {

/// Takes the first free block that is large enough, so the same calls give the same offsets.
class Blocks {
 public:
  static constexpr std::int64_t alignment = 512;  ///< bytes

  explicit Blocks(std::int64_t bytes) : bytes_(bytes) {}

  /// Offset of a block of at least `bytes` bytes; nothing if none is free.
  std::optional<std::int64_t> take(std::int64_t bytes) {
    bytes = std::max<std::int64_t>(bytes, 1);
    if (bytes > bytes_) return std::nullopt;
    bytes = (bytes + alignment - 1) / alignment * alignment;
    std::int64_t free = 0;  // begin of the gap before the next block
    for (const auto& [offset, size] : taken_) {
      if (offset - free >= bytes) break;
      free = offset + size;
    }
    if (bytes_ - free < bytes) return std::nullopt;
    taken_.emplace(free, bytes);
    return free;
  }

  /// False if no block begins at `offset`.
  bool give_back(std::int64_t offset) { return taken_.erase(offset) > 0; }

 private:
  std::int64_t bytes_;
  std::map<std::int64_t, std::int64_t> taken_;  // size by offset
};

}  // namespace shingle
