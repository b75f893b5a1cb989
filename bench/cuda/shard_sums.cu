#include <cuda_bf16.h>

#include "cuda/kernels/ptx/bulk.cuh"
#include "cuda/kernels/ptx/reduce.cuh"
#include "shard_sums.hpp"

namespace shingle::cuda {
namespace {

constexpr int threads = 512;
constexpr int per_chunk = 8;                                    // elements in 16 bytes
constexpr int batch = 4;                                        // chunks of a thread in flight together
constexpr int row_chunks = 32, bulk_chunks = 128 * row_chunks;  // by TMA: a tile's row, 128 rows

__global__ void __launch_bounds__(threads)
    send_kernel(const uint4* products, const __grid_constant__ Owners to, Turns turns, std::int64_t chunks,
                bool adds) {
  const std::int64_t stride = std::int64_t{gridDim.x} * threads;
  for (int i = 0; i < turns.count; ++i) {
    const int owner = (turns.first + i) % turns.owners;
    const uint4* const from = products + owner * chunks;
    uint4* const at = static_cast<uint4*>(to.at[owner]);
    for (std::int64_t c = std::int64_t{blockIdx.x} * threads + threadIdx.x; c < chunks; c += batch * stride) {
      uint4 chunk[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (c + j * stride < chunks) chunk[j] = from[c + j * stride];
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (c + j * stride >= chunks)
          break;
        else if (adds)
          ptx::add_bf16x8(at + c + j * stride, chunk[j]);
        else
          at[c + j * stride] = chunk[j];
    }
  }
}

/// All threads load a piece into shared memory. The first warp starts its bulk adds to an owner's memory; the
/// next piece is loaded meanwhile, into the other half.
__global__ void __launch_bounds__(threads)
    send_bulk_kernel(const uint4* products, const __grid_constant__ Owners to, Turns turns,
                     std::int64_t chunks) {
  extern __shared__ uint4 pieces[];  // two halves of `bulk_chunks`
  int half = 0;
  for (int i = 0; i < turns.count; ++i) {
    const int owner = (turns.first + i) % turns.owners;
    const uint4* const from = products + owner * chunks;
    uint4* const at = static_cast<uint4*>(to.at[owner]);
    for (std::int64_t c = std::int64_t{blockIdx.x} * bulk_chunks; c < chunks;
         c += std::int64_t{gridDim.x} * bulk_chunks, half ^= 1) {
      uint4* const piece = pieces + half * bulk_chunks;
      const auto here = static_cast<int>(min(std::int64_t{bulk_chunks}, chunks - c));
      if (threadIdx.x < 32) ptx::wait_bulk_reads<1>();  // of the same half
      __syncthreads();
      for (int j = static_cast<int>(threadIdx.x); j < here; j += threads) piece[j] = from[c + j];
      ptx::fence_async_shared();
      __syncthreads();
      if (threadIdx.x >= 32) continue;
      for (int j = static_cast<int>(threadIdx.x) * row_chunks; j < here; j += 32 * row_chunks)
        ptx::add_bulk_bf16(at + c + j, piece + j, min(row_chunks, here - j) * 16);
      ptx::commit_bulk();
    }
  }
  if (threadIdx.x < 32) ptx::wait_bulk<0>();
}

__global__ void __launch_bounds__(threads)
    sum_kernel(const uint4* regions, int sources, std::int64_t chunks, uint4* sums) {
  const std::int64_t stride = std::int64_t{gridDim.x} * threads;
  for (std::int64_t c = std::int64_t{blockIdx.x} * threads + threadIdx.x; c < chunks; c += stride) {
    float total[per_chunk] = {};
    for (int s = 0; s < sources; ++s) {
      const uint4 chunk = regions[s * chunks + c];
      const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&chunk);
#pragma unroll
      for (int i = 0; i < per_chunk / 2; ++i) {
        const float2 pair = __bfloat1622float2(pairs[i]);
        total[2 * i] += pair.x, total[2 * i + 1] += pair.y;
      }
    }
    uint4 sum;
    auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&sum);
#pragma unroll
    for (int i = 0; i < per_chunk / 2; ++i) pairs[i] = __floats2bfloat162_rn(total[2 * i], total[2 * i + 1]);
    sums[c] = sum;
  }
}

}  // namespace

cudaError_t launch_send(const void* products, const Owners& to, const Turns& turns, std::int64_t count,
                        Send way, int ctas, cudaStream_t stream) {
  if (turns.owners < 1 || turns.owners > most_owners || count % per_chunk != 0 || ctas < 1)
    return cudaErrorInvalidValue;
  if (way == Send::add_bulk) {
    constexpr int bytes = 2 * bulk_chunks * 16;
    if (const cudaError_t failed =
            cudaFuncSetAttribute(send_bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
      return failed;
    send_bulk_kernel<<<ctas, threads, bytes, stream>>>(static_cast<const uint4*>(products), to, turns,
                                                       count / per_chunk);
    return cudaGetLastError();
  }
  send_kernel<<<ctas, threads, 0, stream>>>(static_cast<const uint4*>(products), to, turns, count / per_chunk,
                                            way == Send::add);
  return cudaGetLastError();
}

cudaError_t launch_sum(const void* regions, int sources, std::int64_t count, void* sums,
                       cudaStream_t stream) {
  if (count % per_chunk != 0) return cudaErrorInvalidValue;
  constexpr int ctas = 1024;
  sum_kernel<<<ctas, threads, 0, stream>>>(static_cast<const uint4*>(regions), sources, count / per_chunk,
                                           static_cast<uint4*>(sums));
  return cudaGetLastError();
}

}  // namespace shingle::cuda
