#include "attention.hpp"

#include "cuda/kernels/device_facts.hpp"
#include "elementwise/chunk.cuh"

namespace shingle::cuda {
namespace {

constexpr int attention_threads = 256;
constexpr int head_chunk = 8;  // elements of a head that a lane has: 32 lanes have 256

template <bool packs>
__global__ void __launch_bounds__(attention_threads)
    move_lse_kernel(const PackedLse packed, float* lse, std::int64_t row) {
  const std::int64_t count = packed.sequences * packed.queries * packed.heads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * attention_threads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * attention_threads) {
    const std::int64_t token = i / packed.heads, head = i % packed.heads;
    const std::int64_t sequence = token / packed.queries, query = token % packed.queries;
    float& at_packed = packed.packed[(sequence * packed.heads + head) * packed.queries + query];
    float& at_lse = lse[token * row + head];
    if constexpr (packs)
      at_packed = at_lse;
    else
      at_lse = at_packed;
  }
}

/// Sum over the lanes of a warp, the same in each lane.
__device__ float sum_of_warp(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}

/// A lane's part of a head in one row.
template <class T>
struct HeadChunk {
  static __device__ Chunk<T, head_chunk> of(const AttentionRows& rows, std::int64_t row, std::int64_t col,
                                            bool is_there) {
    Chunk<T, head_chunk> chunk;
    if (is_there) load(chunk, rows.at + row * rows.row_bytes + col * std::int64_t{sizeof(T)}, head_chunk);
    return chunk;
  }
  static __device__ void put(const float (&x)[head_chunk], const AttentionRows& rows, std::int64_t row,
                             std::int64_t col, bool is_there) {
    if (is_there)
      store(narrowed<T>(x), rows.at + row * rows.row_bytes + col * std::int64_t{sizeof(T)}, head_chunk);
  }
  static __device__ float dot(const Chunk<T, head_chunk>& a, const Chunk<T, head_chunk>& b) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < head_chunk; ++i) sum += widened(a, i) * widened(b, i);
    return sum_of_warp(sum);
  }
};

/// A warp has one head of K and V of one query.
template <class T>
__global__ void __launch_bounds__(attention_threads)
    single_backward_kernel(const __grid_constant__ SingleBackwardArgs args) {
  using Head = HeadChunk<T>;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool is_there = lane * head_chunk < args.head_dim;
  const std::int64_t warps = std::int64_t{gridDim.x} * attention_threads / 32;
  for (std::int64_t item = (std::int64_t{blockIdx.x} * attention_threads + threadIdx.x) / 32;
       item < args.queries * args.kv_heads; item += warps) {
    const std::int64_t row = item / args.kv_heads, kv_head = item % args.kv_heads;
    const std::int64_t kv_col = kv_head * args.head_dim + lane * head_chunk;
    const auto key = Head::of(args.keys, row, kv_col, is_there);
    const auto value = Head::of(args.values, row, kv_col, is_there);
    float key_grad[head_chunk] = {}, value_grad[head_chunk] = {};
    for (int i = 0; i < args.sharing; ++i) {
      const std::int64_t head = kv_head * args.sharing + i;
      const std::int64_t col = head * args.head_dim + lane * head_chunk;
      const auto q = Head::of(args.q, row, col, is_there);
      const auto out = Head::of(args.out, row, col, is_there);
      const auto grad = Head::of(args.grad, row, col, is_there);
      const float lse = reinterpret_cast<const float*>(args.lse.at + row * args.lse.row_bytes)[head];
      const float weight = expf(Head::dot(q, key) * args.scale - lse);
      const float score_grad = weight * (Head::dot(grad, value) - Head::dot(grad, out)) * args.scale;
      float q_grad[head_chunk];
#pragma unroll
      for (int j = 0; j < head_chunk; ++j) {
        q_grad[j] = score_grad * widened(key, j);
        key_grad[j] += score_grad * widened(q, j);
        value_grad[j] += weight * widened(grad, j);
      }
      Head::put(q_grad, args.q_grad, row, col, is_there);
    }
    Head::put(key_grad, args.keys_grad, row, kv_col, is_there);
    Head::put(value_grad, args.values_grad, row, kv_col, is_there);
  }
}

template <bool packs>
cudaError_t launch_move_lse(const PackedLse& packed, float* lse, std::int64_t row, cudaStream_t stream) {
  unsigned ctas = 0;
  if (const cudaError_t error =
          find_cta_count(packed.sequences * packed.queries * packed.heads, attention_threads, ctas))
    return error;
  if (ctas == 0) return cudaSuccess;
  move_lse_kernel<packs><<<ctas, attention_threads, 0, stream>>>(packed, lse, row);
  return cudaGetLastError();
}

const void* find_single_backward_kernel(Element type) {
  switch (type) {
    case Element::bf16:
      return reinterpret_cast<const void*>(single_backward_kernel<__nv_bfloat16>);
    case Element::f16:
      return reinterpret_cast<const void*>(single_backward_kernel<__half>);
    case Element::f32:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_pack_lse(const float* lse, std::int64_t row, const PackedLse& to, cudaStream_t stream) {
  return launch_move_lse<true>(to, const_cast<float*>(lse), row, stream);
}

cudaError_t launch_unpack_lse(const PackedLse& from, float* lse, std::int64_t row, cudaStream_t stream) {
  return launch_move_lse<false>(from, lse, row, stream);
}

cudaError_t launch_single_backward(const SingleBackwardArgs& args, cudaStream_t stream) {
  const void* const kernel = find_single_backward_kernel(args.type);
  if (kernel == nullptr || args.head_dim < 1 || args.head_dim % head_chunk != 0 ||
      args.head_dim > 32 * head_chunk)
    return cudaErrorInvalidValue;
  unsigned ctas = 0;
  if (const cudaError_t error = find_cta_count(args.queries * args.kv_heads * 32, attention_threads, ctas))
    return error;
  if (ctas == 0) return cudaSuccess;
  void* parameters[] = {const_cast<SingleBackwardArgs*>(&args)};
  return cudaLaunchKernel(kernel, dim3(ctas), dim3(attention_threads), parameters, 0, stream);
}

cudaError_t preload_attention() {
  for (const void* kernel :
       {reinterpret_cast<const void*>(move_lse_kernel<true>),
        reinterpret_cast<const void*>(move_lse_kernel<false>), find_single_backward_kernel(Element::bf16),
        find_single_backward_kernel(Element::f16)}) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

}  // namespace shingle::cuda
