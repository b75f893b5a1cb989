#include "memory_pool.hpp"

#include <cstdint>
#include <limits>

#include "check.hpp"
#include "tolerate.hpp"

namespace shingle::cuda {

MemoryPool::MemoryPool() {
  cudaMemPoolProps of{};
  of.allocType = cudaMemAllocationTypePinned;
  of.location.type = cudaMemLocationTypeDevice;
  check(cudaGetDevice(&of.location.id), "cudaGetDevice");
  check(cudaMemPoolCreate(&pool_, &of), "cudaMemPoolCreate");
  std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &kept), "cudaMemPoolSetAttribute");
}

MemoryPool::~MemoryPool() {
  tolerate(cudaMemPoolDestroy(pool_), "cudaMemPoolDestroy");
}

void* MemoryPool::allocate(std::size_t bytes, cudaStream_t stream) const {
  void* memory = nullptr;
  check(cudaMallocFromPoolAsync(&memory, bytes, pool_, stream), "cudaMallocFromPoolAsync");
  return memory;
}

void MemoryPool::release(void* memory, cudaStream_t stream) {
  check(cudaFreeAsync(memory, stream), "cudaFreeAsync");
}

}  // namespace shingle::cuda
