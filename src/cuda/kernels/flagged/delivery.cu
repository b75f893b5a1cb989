// Instances of the delivery kernel, and their launch.
#include <algorithm>

#include "cuda/kernels/device_facts.hpp"
#include "cuda/kernels/launch_config.hpp"
#include "delivery.cuh"

namespace shingle::cuda {
namespace {

__global__ void clear_kernel(uint4* at, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    at[i] = {flag, flag, flag, flag};
}

template <class T, int chunks>
const void* kernel_of(bool product_sent) {
  return product_sent ? reinterpret_cast<const void*>(delivery_kernel<T, chunks, true>)
                      : reinterpret_cast<const void*>(delivery_kernel<T, chunks, false>);
}

template <class T>
const void* kernel_of(int chunks, bool product_sent) {
  if (chunks <= 1) return kernel_of<T, 1>(product_sent);
  if (chunks <= 2) return kernel_of<T, 2>(product_sent);
  if (chunks <= 4) return kernel_of<T, 4>(product_sent);
  if (chunks <= most_row_chunks) return kernel_of<T, most_row_chunks>(product_sent);
  return nullptr;
}

const void* kernel_of(Element type, int chunks, bool product_sent) {
  switch (type) {
    case Element::f32:
      return kernel_of<float>(chunks, product_sent);
    case Element::bf16:
      return kernel_of<__nv_bfloat16>(chunks, product_sent);
    case Element::f16:
      return kernel_of<__half>(chunks, product_sent);
  }
  return nullptr;
}

int size_of(Element type) {
  return type == Element::f32 ? 4 : 2;
}

}  // namespace

cudaError_t prepare_delivery(const DeliveryArgs& args, DeliveryLaunch& at) {
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts); error != cudaSuccess) return error;
  int sent = 0, taken = 0;
  for (int i = 0; i < args.sent; ++i) sent += args.sends[i].rows;
  for (int i = 0; i < args.taken; ++i) taken += args.takes[i].rows;
  const int rows = std::max({sent, taken, 1});
  const int row_chunks = args.cols * size_of(args.type) / 16;
  const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
  const bool clusters = ptx::launch_early(facts.major);  // what PDL needs, they need
  // A thread for each chunk of a row, in as many CTAs as that takes.
  at.slices = clusters ? std::clamp(ceil_div(row_chunks, most_delivery_threads), 1, most_slices) : 1;
  int chunks = 1;
  while (at.slices * chunks * most_delivery_threads < row_chunks) chunks *= 2;
  at.kernel = kernel_of(args.type, chunks, args.product_sent);
  if (at.kernel == nullptr) return cudaErrorInvalidValue;
  at.threads = std::max(ceil_div(ceil_div(row_chunks, at.slices * chunks), 32), 1) * 32;
  at.early = args.early && ptx::launch_early(facts.major);
  int most = 0;  // CTAs that are resident at once
  if (at.slices == 1) {
    if (const cudaError_t error =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, at.kernel, at.threads, 0))
      return error;
    most *= facts.sms;
  } else {
    const LaunchConfig config(at.slices, at.threads, 0, nullptr, {at.slices, false});
    if (const cudaError_t error = cudaOccupancyMaxActiveClusters(&most, at.kernel, &config.get()))
      return error;
    most *= at.slices;
  }
  if (args.workers > 0 && args.workers < facts.sms) most = most * args.workers / facts.sms;
  if (most < at.slices) return cudaErrorInvalidConfiguration;
  at.ctas = std::min(rows, most / at.slices) * at.slices;
  return cudaSuccess;
}

cudaError_t launch_delivery(DeliveryArgs& args, const DeliveryLaunch& at, cudaStream_t stream) {
  const LaunchConfig config(at.ctas, at.threads, 0, stream, {at.slices, at.early});
  void* parameters[] = {&args};
  return cudaLaunchKernelExC(&config.get(), at.kernel, parameters);
}

cudaError_t launch_clear(char* at, std::int64_t bytes, cudaStream_t stream) {
  clear_kernel<<<256, 256, 0, stream>>>(reinterpret_cast<uint4*>(at), bytes / 16);
  return cudaGetLastError();
}

cudaError_t preload_deliveries() {
  cudaFuncAttributes attributes;
  for (const Element type : {Element::f32, Element::bf16, Element::f16})
    for (const int chunks : {1, 2, 4, most_row_chunks})
      for (const bool product_sent : {false, true})
        if (const cudaError_t error =
                cudaFuncGetAttributes(&attributes, kernel_of(type, chunks, product_sent)))
          return error;
  return cudaFuncGetAttributes(&attributes, clear_kernel);
}

}  // namespace shingle::cuda
