#include "shingle/backend/backend.hpp"

#include <map>

#include "shingle/base/error.hpp"

namespace shingle {

void Executable::enqueue(std::span<void* const>) {
  throw Unsupported("this backend has no streams to enqueue a plan on; call run() instead");
}

void Executable::enqueue(const CallTag&, std::span<const CallMatrix>, std::span<void* const>) {
  throw InvalidArgument(
      "the executable has no arena, so its matrices are bound: call bind(), then enqueue()");
}

std::shared_ptr<Heap> World::make_heap(std::int64_t bytes) {
  struct Blocks final : Heap {
    std::int64_t bytes() const override { return size; }
    void* data(int rank) const override { return by_rank.at(rank).data(); }
    std::int64_t size = 0;
    std::map<int, DeviceBuffer> by_rank;
  };
  auto heap = std::make_shared<Blocks>();
  heap->size = bytes;
  for (const int rank : local_ranks()) heap->by_rank[rank] = allocate(rank, static_cast<std::size_t>(bytes));
  return heap;
}

std::shared_ptr<Arena> World::make_arena(std::int64_t, std::shared_ptr<Heap>) {
  throw Unsupported("the " + backend() + " backend has no arenas");
}

std::unique_ptr<Executable> World::compile(const Plan&, const std::shared_ptr<Arena>&, double) {
  throw Unsupported("the " + backend() + " backend has no arenas");
}

}  // namespace shingle
