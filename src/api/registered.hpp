// The registered memory of a context: blocks of a symmetric heap.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "blocks.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle {

class Registered : public std::enable_shared_from_this<Registered> {
 public:
  /// Collective.
  Registered(World& world, std::int64_t bytes);

  const std::shared_ptr<Heap>& heap() const { return heap_; }
  /// As Context::allocate().
  DeviceBuffer allocate(int rank, std::int64_t bytes);

 private:
  std::shared_ptr<Heap> heap_;
  std::mutex mutex_;
  std::map<int, Blocks> blocks_;  // by local rank
};

}  // namespace shingle
