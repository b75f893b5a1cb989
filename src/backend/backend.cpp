#include "shingle/backend/backend.hpp"

#include "shingle/base/error.hpp"

namespace shingle {

void Executable::enqueue(std::span<void* const>) {
  throw Unsupported("this backend has no streams to enqueue a plan on; call run() instead");
}

}  // namespace shingle
