// Device memory for the tables of plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"

namespace shingle::cuda {

/// Blocks of device memory for the tables of many plans. A plan that goes gives its blocks back. None is
/// freed before the end, as that would wait for the device.
class TableBlocks {
 public:
  static constexpr std::size_t block_bytes = std::size_t{256} << 10;  ///< of a block, at least

  struct Block {
    char* data = nullptr;
    std::size_t bytes = 0;
  };
  Block take(std::size_t bytes);
  void give(Block block) { free_.push_back(block); }
  /// Empty host memory for a block's tables, used before if possible: fresh pages cost more than tables.
  std::vector<char> take_staging();
  void give_staging(std::vector<char> staging);

 private:
  std::vector<DeviceMemory> slabs_;
  std::vector<Block> free_;
  std::vector<std::vector<char>> staging_;
};

/// Device memory for the tables of a plan. Tables are collected on the host, and copied together.
class TableMemory {
 public:
  /// Takes blocks from the pool; allocates them if it is null. The pool must outlive this object.
  explicit TableMemory(TableBlocks* pool = nullptr) : pool_(pool) {}
  ~TableMemory();
  TableMemory(const TableMemory&) = delete;
  TableMemory& operator=(const TableMemory&) = delete;

  /// Memory without values.
  char* reserve(std::size_t bytes);
  /// The address that the values will have on the device after commit().
  template <class T>
  const T* put(const std::vector<T>& values) {
    return static_cast<const T*>(put(values.data(), values.size() * sizeof(T)));
  }
  /// Enqueues the copy of all tables to the device; `settle` must wait until it is complete. `stream` must
  /// have no other work. No put() may follow.
  void commit(const Stream& stream, const std::function<void(const Stream&)>& settle);
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Block {
    TableBlocks::Block memory{};
    DeviceMemory owned{};        // empty: a block of the pool
    std::vector<char> tables{};  // not copied yet
  };
  Block new_block(std::size_t bytes);
  const void* put(const void* values, std::size_t bytes);

  TableBlocks* pool_;
  std::vector<Block> blocks_;  // the last one takes tables
  std::vector<Block> reserved_;
  std::int64_t bytes_ = 0;
};

}  // namespace shingle::cuda
