// A group of lanes has one head of one query: as many lanes as the head has chunks of 8 elements, rounded up
// to a power of two, so that a group lies in one warp.
#include "merge.hpp"

#include "cuda/kernels/device_facts.hpp"
#include "elementwise/chunk.cuh"

namespace shingle::cuda {
namespace {

constexpr int merge_threads = 256;
constexpr int merge_chunk = 8;

template <class T>
__device__ void add_weighted(float (&sum)[merge_chunk], const char* at, float weight) {
  Chunk<T, merge_chunk> chunk;
  load(chunk, at, merge_chunk);
#pragma unroll
  for (int i = 0; i < merge_chunk; ++i) sum[i] += weight * widened(chunk, i);
}

template <class T>
__global__ void __launch_bounds__(merge_threads)
    merge_kernel(const __grid_constant__ MergeArgs args, int lanes) {
  const std::int64_t groups = args.rows * args.heads;
  const std::int64_t first = (std::int64_t{blockIdx.x} * merge_threads + threadIdx.x) / lanes;
  const std::int64_t stride = std::int64_t{gridDim.x} * merge_threads / lanes;
  const int chunk = static_cast<int>(threadIdx.x) % lanes;
  const bool has_chunk = chunk * merge_chunk < args.head_dim;
  // All groups of a warp go round together, because they meet below.
  for (std::int64_t round = first - threadIdx.x % 32 / lanes; round < groups; round += stride) {
    const std::int64_t group = round + threadIdx.x % 32 / lanes;
    const bool is_there = group < groups;
    const std::int64_t row = is_there ? group / args.heads : 0;
    const int head = is_there ? static_cast<int>(group % args.heads) : 0;
    const auto lse_of = [&](const MergePart& part) {
      return part.lse[(row - part.row) * part.lse_row + head];
    };
    const auto has_row = [&](const MergePart& part) {
      return is_there && row >= part.row && row < part.row + part.rows;
    };
    float most = -INFINITY;
    for (int p = 0; p < args.part_count; ++p)
      if (has_row(args.parts[p])) most = fmaxf(most, lse_of(args.parts[p]));
    const std::int64_t col = std::int64_t{head} * args.head_dim + chunk * merge_chunk;
    float sum[merge_chunk] = {}, total = 0;
    for (int p = 0; p < args.part_count; ++p) {
      const MergePart& part = args.parts[p];
      if (!has_row(part)) continue;
      const float weight = expf(lse_of(part) - most);
      total += weight;
      const std::int64_t element = (row - part.row) * part.value_row + col;
      if (!has_chunk) continue;
      if (part.wide)
        add_weighted<float>(sum, part.value + element * std::int64_t{sizeof(float)}, weight);
      else
        add_weighted<T>(sum, part.value + element * std::int64_t{sizeof(T)}, weight);
    }
    __syncwarp();  // the log-sum-exp of a part may be overwritten when all lanes have read it
    if (!is_there) continue;
    if (args.lse != nullptr && chunk == 0) args.lse[row * args.lse_row + head] = most + logf(total);
    if (!has_chunk) continue;
#pragma unroll
    for (int i = 0; i < merge_chunk; ++i) sum[i] /= total;
    const std::int64_t element = row * args.to_row + col;
    if (args.to_wide)
      store(narrowed<float>(sum), args.to + element * std::int64_t{sizeof(float)}, merge_chunk);
    else
      store(narrowed<T>(sum), args.to + element * std::int64_t{sizeof(T)}, merge_chunk);
  }
}

const void* find_merge_kernel(Element type) {
  switch (type) {
    case Element::bf16:
      return reinterpret_cast<const void*>(merge_kernel<__nv_bfloat16>);
    case Element::f16:
      return reinterpret_cast<const void*>(merge_kernel<__half>);
    case Element::f32:
      return reinterpret_cast<const void*>(merge_kernel<float>);
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_merge(const MergeArgs& args, cudaStream_t stream) {
  if (args.rows < 1 || args.heads < 1) return cudaSuccess;
  if (args.part_count < 1 || args.part_count > most_merged_parts || args.head_dim < 1 ||
      args.head_dim % merge_chunk != 0 || args.head_dim > 32 * merge_chunk)
    return cudaErrorInvalidValue;
  int lanes = 1;
  while (lanes * merge_chunk < args.head_dim) lanes *= 2;
  unsigned ctas = 0;
  if (const cudaError_t error = find_cta_count(args.rows * args.heads * lanes, merge_threads, ctas))
    return error;
  void* parameters[] = {const_cast<MergeArgs*>(&args), &lanes};
  return cudaLaunchKernel(find_merge_kernel(args.type), dim3(static_cast<unsigned>(ctas)),
                          dim3(merge_threads), parameters, 0, stream);
}

cudaError_t preload_merge() {
  for (const Element type : {Element::f32, Element::bf16, Element::f16}) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, find_merge_kernel(type));
        error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

}  // namespace shingle::cuda
