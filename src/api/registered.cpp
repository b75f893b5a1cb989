#include "registered.hpp"

#include <fmt/format.h>

#include "shingle/base/error.hpp"
#include "shingle/grid/tile_grid.hpp"

namespace shingle {

Registered::Registered(World& world, std::int64_t bytes)
    : heap_(world.make_heap(ceil_div(bytes, Blocks::alignment) * Blocks::alignment)) {
  for (const int rank : world.local_ranks()) blocks_.emplace(rank, heap_->bytes());
}

DeviceBuffer Registered::allocate(int rank, std::int64_t bytes) {
  if (bytes < 0)
    throw InvalidArgument(fmt::format("{} bytes of registered memory: must not be negative", bytes));
  std::unique_lock lock(mutex_);
  const auto found = blocks_.find(rank);
  if (found == blocks_.end())
    throw InvalidArgument(fmt::format("rank {} is not a rank of this process", rank), rank);
  const auto offset = found->second.take(bytes);
  if (!offset)
    throw Unsupported(
        fmt::format("no block of {} bytes is free in the {} bytes of registered memory of rank {}: "
                    "raise registered_bytes",
                    bytes, heap_->bytes(), rank));
  lock.unlock();  // give_back() runs here if there is no memory for the owner
  const auto give_back = [own = shared_from_this(), &blocks = found->second, at = *offset](void*) {
    const std::lock_guard again(own->mutex_);
    blocks.give_back(at);
  };
  return {std::shared_ptr<void>(static_cast<char*>(heap_->data(rank)) + *offset, give_back),
          static_cast<std::size_t>(bytes)};
}

}  // namespace shingle
