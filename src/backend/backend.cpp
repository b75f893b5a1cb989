#include "shingle/backend/backend.hpp"

#include "shingle/base/error.hpp"

namespace shingle {

void Executable::enqueue(std::span<void* const>) {
  throw Unsupported("this backend has no streams to enqueue a plan on; call run() instead");
}

void Executable::enqueue(const CallTag&, std::span<const CallMatrix>, std::span<void* const>) {
  throw InvalidArgument(
      "the executable has no arena, so its matrices are bound: call bind(), then enqueue()");
}

std::shared_ptr<Arena> World::make_arena(std::int64_t) {
  throw Unsupported("the " + backend() + " backend has no arenas");
}

std::unique_ptr<Executable> World::compile(const Plan&, const std::shared_ptr<Arena>&, double) {
  throw Unsupported("the " + backend() + " backend has no arenas");
}

}  // namespace shingle
