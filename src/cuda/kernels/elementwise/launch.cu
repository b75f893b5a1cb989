// Chooses the kernel of a pass, and its number of CTAs.
#include <algorithm>

#include "cuda/kernels/ptx/grids.cuh"
#include "kernels.hpp"

namespace shingle::cuda {
namespace {

constexpr int ceil_div(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

bool consistent(const ElementwiseArgs& args) {
  if (args.rows >= std::int64_t{1} << 31 || args.cols >= std::int64_t{1} << 31) return false;
  if (args.tile_rows < 1 || args.tile_cols < 1 || args.tiles_n < 1) return false;
  if (args.source_count < 1 || args.source_count > max_sources || args.sources == nullptr) return false;
  if (!row_wise(args)) return args.order != nullptr && !args.has_residual;
  if (args.activate == Activate::swiglu && args.cols % 2 != 0) return false;
  if (args.queue != nullptr || args.gate.count > 0 || args.notify.count > 0) return false;
  return args.cols * args.tile_cols < std::int64_t{1} << 32;  // RowLayout::reciprocal
}

cudaError_t attribute(cudaDeviceAttr which, int* value) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(value, which, device);
}

/// Threads: enough to read a row in one batch. Slices: enough for all rows in one wave of CTAs. Both have the
/// limit of a CTA.
RowLayout row_layout(const ElementwiseArgs& args, std::int64_t rows, int workers) {
  const bool gated = args.activate == Activate::swiglu;
  const int length = 16 / size_of(args.type);
  const int chunks = ceil_div(gated ? args.cols / 2 : args.cols, length);
  RowLayout layout;
  layout.threads = std::min(ceil_div(ceil_div(chunks, row_batch(gated)), 32) * 32, max_row_threads);
  layout.slices = std::clamp(ceil_div(rows, workers), 1, max_row_threads / layout.threads);
  layout.cached = args.norm ? chunks * length : 0;
  if (args.tiles_n > 1)
    layout.reciprocal = (std::uint64_t{1} << 32) / static_cast<std::uint64_t>(args.tile_cols) + 1;
  return layout;
}

/// Launch of a tile-by-tile or row-wise pass.
struct PassLaunch {
  const void* kernel = nullptr;
  int threads = 0;
  std::size_t shared_bytes = 0;
  std::int64_t pieces = 0;  ///< CTAs that would have work
  bool pairs = false;       ///< ElementwiseArgs::pairs
  bool early = false;       ///< ElementwiseArgs::early
};

/// Launches no more CTAs than can be resident together: a CTA that is not resident could own an item that
/// resident CTAs wait for.
cudaError_t launch(const PassLaunch& at, int most, int sms, void** parameters, cudaStream_t stream) {
  if (at.kernel == nullptr) return cudaErrorInvalidValue;
  int each = 0;
  if (const cudaError_t error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, at.kernel, at.threads, at.shared_bytes);
      error != cudaSuccess)
    return error;
  if (each == 0) return cudaErrorInvalidConfiguration;
  const std::int64_t resident = std::int64_t{each} * sms;
  const auto ctas =
      static_cast<unsigned>(std::min({at.pieces, resident, most > 0 ? std::int64_t{most} : resident}));
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (at.pairs && ctas % 2 == 0) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {2, 1, 1};
  }
  if (at.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(static_cast<unsigned>(at.threads));
  config.dynamicSmemBytes = at.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelExC(&config, at.kernel, parameters);
}

/// Bytes of shared memory for the chunks in flight of a sum. A CTA may have `most_shared` bytes.
std::int32_t tile_room(const ElementwiseArgs& args, int most_shared) {
  constexpr int own = 8 << 10, enough = 192 << 10;
  if (copies(args)) return 0;
  const int chunk_bytes = 16 / size_of(args.type) * size_of(args.source_type);
  const int depth = sum_depth(std::min(most_shared - own, enough), args.source_count, chunk_bytes);
  return depth < 2 ? 0 : depth * args.source_count * copy_threads * chunk_bytes;
}

cudaError_t preload(const void* kernel) {
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
    return error;
  int most = 0;
  if (const cudaError_t error = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
      error != cudaSuccess)
    return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              most - static_cast<int>(attributes.sharedSizeBytes));
}

}  // namespace

cudaError_t launch_elementwise(const ElementwiseArgs& args, cudaStream_t stream) {
  if (args.first >= args.last || args.rows < 1 || args.cols < 1) return cudaSuccess;
  if (!consistent(args)) return cudaErrorInvalidValue;
  int sms = 0;
  if (const cudaError_t error = attribute(cudaDevAttrMultiProcessorCount, &sms); error != cudaSuccess)
    return error;
  ElementwiseArgs copy = args;
  if (!row_wise(args)) {
    void* parameters[] = {&copy};
    int major = 0, most_shared = 0;
    if (const cudaError_t error = attribute(cudaDevAttrComputeCapabilityMajor, &major); error != cudaSuccess)
      return error;
    if (const cudaError_t error = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most_shared);
        error != cudaSuccess)
      return error;
    copy.room = tile_room(args, most_shared);
    return launch({find_tiles_kernel(args), tile_threads, static_cast<std::size_t>(copy.room),
                   args.last - args.first, args.pairs, args.early && ptx::launch_early(major)},
                  args.ctas, sms, parameters, stream);
  }
  const std::int64_t rows = std::min(args.last * args.tile_rows, args.rows) - args.first * args.tile_rows;
  RowLayout layout = row_layout(args, rows, args.ctas > 0 ? std::min(args.ctas, sms) : sms);
  void* parameters[] = {&copy, &layout};
  const std::size_t cache = static_cast<std::size_t>(layout.slices) * layout.cached * sizeof(float);
  return launch(
      {find_rows_kernel(args), layout.slices * layout.threads, cache, ceil_div(rows, layout.slices)},
      args.ctas, sms, parameters, stream);
}

cudaError_t preload_elementwise() {
  for (const Element type : {Element::f32, Element::bf16, Element::f16})
    for (const Element source : {type, Element::f32})
      for (const int sources : {1, 2})
        for (const Activate activate : {Activate::none, Activate::swiglu}) {
          ElementwiseArgs args;
          args.type = type;
          args.source_type = source;
          args.source_count = sources;
          args.activate = activate;
          for (const void* kernel : {find_tiles_kernel(args), find_rows_kernel(args)})
            if (const cudaError_t error = preload(kernel); error != cudaSuccess) return error;
        }
  return cudaSuccess;
}

}  // namespace shingle::cuda
