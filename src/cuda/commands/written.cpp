#include "written.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "cuda/raii/check.hpp"

namespace shingle::cuda {
namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;

  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const void* begin, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  return {first, first + bytes};
}

struct Recent {
  std::array<Range, remembered_writes> ranges{};
  std::size_t next = 0;
};

std::mutex lock;
std::map<int, Recent> by_device;  // guarded by lock

Recent& recent() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return by_device[device];
}

}  // namespace

void note_written(const void* begin, std::size_t bytes) {
  const std::lock_guard guard(lock);
  Recent& at = recent();
  at.ranges[at.next++ % at.ranges.size()] = range_of(begin, bytes);
}

bool written_lately(const void* begin, std::size_t bytes) {
  const std::lock_guard guard(lock);
  const Range asked = range_of(begin, bytes);
  return std::ranges::any_of(recent().ranges, [&](const Range& one) { return one.meets(asked); });
}

}  // namespace shingle::cuda
