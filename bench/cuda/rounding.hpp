// Compares bf16 results of GPUs, to one rounding.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "base/parallel.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/memory.hpp"

namespace shingle::bench {

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// True if two bf16 results are sums of the same k products in any order: equal or neighbouring values. The
/// tolerance grows with k, as tensor cores truncate and the errors of long sums accumulate.
inline bool same(std::uint16_t a, std::uint16_t b, std::int64_t k) {
  const float x = from_bf16(a), y = from_bf16(b), order = static_cast<float>(k) * 0x1p-22f;
  return std::fabs(x - y) <= 0x1p-7f * std::max(std::fabs(x), std::fabs(y)) + order;
}

inline bool all_same(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                     std::int64_t k) {
  constexpr std::size_t block = 1 << 20;
  std::atomic<bool> all{a.size() == b.size()};
  parallel_for(all ? (a.size() + block - 1) / block : 0, [&](std::size_t part) {
    for (std::size_t i = part * block; i < std::min(a.size(), (part + 1) * block); ++i)
      if (!same(a[i], b[i], k)) all = false;
  });
  return all;
}

inline std::vector<std::uint16_t> download(const cuda::DeviceMemory& memory) {
  std::vector<std::uint16_t> data(memory.bytes() / sizeof(std::uint16_t));
  cuda::check(cudaMemcpy(data.data(), memory.get(), memory.bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return data;
}

}  // namespace shingle::bench
