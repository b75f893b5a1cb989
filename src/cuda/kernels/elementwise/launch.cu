// Chooses the kernel of a pass, and its number of CTAs.
#include <algorithm>
#include <numeric>

#include "cuda/kernels/device_facts.hpp"
#include "cuda/kernels/launch_config.hpp"
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
  if (args.index != nullptr) return false;
  if (args.activate == Activate::swiglu && args.cols % 2 != 0) return false;
  if (args.factors != nullptr || args.scale != 1) return false;
  if (args.queue != nullptr || args.gate.count > 0 || args.notify.count > 0) return false;
  return args.cols * args.tile_cols < std::int64_t{1} << 32;  // RowLayout::reciprocal
}

/// Loaders of a CTA. They take the rows of all slices in turn, so a slice has loaders / gcd(loaders, slices)
/// of them: no more than `rows`, those that its ring holds.
int row_loaders(int slices, int rows) {
  int loaders = max_row_loaders;
  while (loaders > 1 && loaders / std::gcd(loaders, slices) > rows) --loaders;
  return loaders;
}

/// Threads: enough to hold a row in one batch. Slices: enough for all rows in one wave of CTAs. Both have the
/// limit of a CTA. Rings: of up to eight pieces, where rows can be in one and `most_shared` bytes have room
/// for two. `bulk`: the kernel has bulk copies.
RowLayout row_layout(const ElementwiseArgs& args, std::int64_t rows, int workers, int most_shared,
                     bool bulk) {
  constexpr int most_pieces = 8, most_slices = 8, line = 128;
  const bool gated = args.activate == Activate::swiglu;
  const int length = 16 / size_of(args.type);
  const std::int64_t out_cols = gated ? args.cols / 2 : args.cols;
  const int chunks = ceil_div(out_cols, length);
  RowLayout layout;
  layout.threads = std::min(ceil_div(ceil_div(chunks, row_batch(gated)), 32) * 32, max_row_threads);
  layout.slices = std::clamp(ceil_div(rows, workers), 1, max_row_threads / layout.threads);
  layout.cached = args.norm ? chunks * length : 0;
  const int cached_bytes = layout.cached * static_cast<int>(sizeof(float));
  layout.slice_bytes = ceil_div(cached_bytes, line) * line;
  if (args.tiles_n > 1)
    layout.reciprocal = (std::uint64_t{1} << 32) / static_cast<std::uint64_t>(args.tile_cols) + 1;

  const int matrices = args.to.dests + (args.has_residual ? 1 + args.sum.dests : 0) + args.source_count;
  const bool plain = gated || args.activate == Activate::none;  // others would cost all rows registers
  const bool held = out_cols % length == 0 && chunks <= row_batch(gated) * layout.threads;
  const bool fed = layout.slices <= most_slices;  // four loader warps cannot feed more
  if (!bulk || !plain || !held || !fed || matrices > row_matrices) return layout;
  const int piece = ceil_div(args.cols * size_of(args.source_type), line) * line;
  const int weight_bytes = args.norm ? static_cast<int>(out_cols) * size_of(args.type) : 0;
  const int room = (most_shared - weight_bytes) / layout.slices / line * line - layout.slice_bytes;
  int pieces = most_pieces;
  while (pieces > 1 && row_ring_bytes(pieces, piece) > room) --pieces;
  if (pieces < 2) return layout;
  layout.row_pieces = args.source_count + args.has_residual;
  layout.loaders = row_loaders(layout.slices, std::max(1, pieces / layout.row_pieces));
  layout.pieces = pieces;
  layout.weight_bytes = weight_bytes;
  layout.piece_bytes = piece;
  layout.slice_bytes += ceil_div(row_ring_bytes(pieces, piece), line) * line;
  return layout;
}

/// Sets the number of CTAs: no more than have work (`pieces`), than the pass may use (`most`; 0: no limit),
/// and than can be resident together. A CTA that is not resident could own an item that resident CTAs wait
/// for.
cudaError_t count_ctas(ElementwiseLaunch& at, std::int64_t pieces, int most, int sms) {
  if (at.kernel == nullptr) return cudaErrorInvalidValue;
  int each = 0;
  if (const cudaError_t error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, at.kernel, at.threads, at.shared_bytes);
      error != cudaSuccess)
    return error;
  if (each == 0) return cudaErrorInvalidConfiguration;
  const std::int64_t resident = std::int64_t{each} * sms;
  at.ctas = static_cast<std::int32_t>(std::min({pieces, resident, most > 0 ? std::int64_t{most} : resident}));
  return cudaSuccess;
}

/// Bytes of shared memory for the chunks in flight of a sum, or the rows of a copy. A CTA may have
/// `most_shared` bytes.
std::int32_t tile_room(const ElementwiseArgs& args, int most_shared) {
  constexpr int own = 8 << 10, enough = 192 << 10;
  if (copies(args)) {
    const bool whole_rows = args.tiles_n > 1 || args.cols * size_of(args.type) % 16 == 0;
    if (!whole_rows) return 0;  // bulk copies could move none
    const CopySlots slots = copy_slots(std::min(most_shared - own, enough), args);
    return copy_warps * slots.count * slots.bytes;
  }
  if (args.mixed || args.index != nullptr) return 0;
  const int chunk_bytes =
      16 / std::min(size_of(args.type), size_of(args.source_type)) * size_of(args.source_type);
  const int depth = sum_depth(std::min(most_shared - own, enough), args.source_count, chunk_bytes);
  return depth < 2 ? 0 : depth * args.source_count * copy_threads * chunk_bytes;
}

/// Whether a kernel has bulk copies: not the device's capability, as the driver may have translated the
/// kernel from an earlier one.
bool has_bulk_copies(const cudaFuncAttributes& attributes) {
  return attributes.ptxVersion >= 90;
}

cudaError_t preload(const void* kernel) {
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess)
    return error;
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts); error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              facts.most_shared - static_cast<int>(attributes.sharedSizeBytes));
}

const void* find_tile_kernel(const ElementwiseArgs& args, std::int32_t room) {
  ElementwiseArgs with = args;
  with.room = room;
  return args.index != nullptr ? find_picked_kernel(with) : find_tiles_kernel(with);
}

/// Sets the kernel of a tile-by-tile pass and its shared memory. A copy goes through registers where its
/// kernel has no bulk copies.
cudaError_t choose_tile_kernel(const ElementwiseArgs& args, int most_shared, ElementwiseLaunch& at) {
  at.room = tile_room(args, most_shared);
  at.kernel = find_tile_kernel(args, at.room);
  if (at.kernel == nullptr) return cudaErrorInvalidValue;
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, at.kernel)) return error;
  if (copies(args) && !has_bulk_copies(attributes)) at.kernel = find_tile_kernel(args, at.room = 0);
  at.shared_bytes = static_cast<std::size_t>(at.room);
  return cudaSuccess;
}

}  // namespace

cudaError_t prepare_elementwise(const ElementwiseArgs& args, ElementwiseLaunch& at) {
  at = {};
  if (args.first >= args.last || args.rows < 1 || args.cols < 1) return cudaSuccess;
  if (!consistent(args)) return cudaErrorInvalidValue;
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts); error != cudaSuccess) return error;
  if (!row_wise(args)) {
    at.threads = tile_threads;
    if (const cudaError_t error = choose_tile_kernel(args, facts.most_shared, at)) return error;
    at.early = args.early && ptx::launch_early(facts.major);
    if (const cudaError_t error = count_ctas(at, args.last - args.first, args.ctas, facts.sms)) return error;
    at.pairs = args.pairs && at.ctas % 2 == 0;
    return cudaSuccess;
  }
  const std::int64_t rows = std::min(args.last * args.tile_rows, args.rows) - args.first * args.tile_rows;
  const void* const ringed = find_rows_kernel(args, true);
  if (ringed == nullptr) return cudaErrorInvalidValue;
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, ringed)) return error;
  const int most_shared = facts.most_shared - static_cast<int>(attributes.sharedSizeBytes);
  if (args.norm && args.cols * std::int64_t{sizeof(float)} > most_shared)
    return cudaErrorInvalidConfiguration;
  const int workers = args.ctas > 0 ? std::min(args.ctas, facts.sms) : facts.sms;
  at.rows = row_layout(args, rows, workers, most_shared, has_bulk_copies(attributes));
  at.kernel = at.rows.pieces > 0 ? ringed : find_rows_kernel(args, false);
  at.threads = at.rows.slices * at.rows.threads + 32 * at.rows.loaders;
  at.shared_bytes = static_cast<std::size_t>(at.rows.slices * at.rows.slice_bytes + at.rows.weight_bytes);
  return count_ctas(at, ceil_div(rows, at.rows.slices), args.ctas, facts.sms);
}

cudaError_t launch_elementwise(ElementwiseArgs& args, const ElementwiseLaunch& at, cudaStream_t stream) {
  if (at.ctas == 0) return cudaSuccess;
  args.room = at.room;
  const LaunchConfig config(at.ctas, at.threads, at.shared_bytes, stream, {at.pairs ? 2 : 1, at.early});
  RowLayout rows = at.rows;
  void* parameters[] = {&args, &rows};  // tile-by-tile kernels take the first only
  return cudaLaunchKernelExC(&config.get(), at.kernel, parameters);
}

cudaError_t launch_elementwise(const ElementwiseArgs& args, cudaStream_t stream) {
  ElementwiseArgs copy = args;
  ElementwiseLaunch at;
  if (const cudaError_t error = prepare_elementwise(args, at)) return error;
  return launch_elementwise(copy, at, stream);
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
          for (const void* kernel : {find_tile_kernel(args, 0), find_tile_kernel(args, 1),
                                     find_rows_kernel(args, false), find_rows_kernel(args, true)})
            if (const cudaError_t error = preload(kernel); error != cudaSuccess) return error;
        }
  for (const Element source : {Element::f32, Element::bf16, Element::f16})
    for (const Element type : {source, Element::f32})
      for (const int sources : {1, 2}) {
        ElementwiseArgs args;
        args.type = type;
        args.source_type = source;
        args.source_count = sources;
        for (args.room = 0; args.room < 2; ++args.room)
          if (const cudaError_t error = preload(find_picked_kernel(args)); error != cudaSuccess) return error;
      }
  for (const Element source : {Element::bf16, Element::f16})
    for (const Element type : {source, Element::f32})
      for (const bool mixed : {false, true}) {
        ElementwiseArgs args;
        args.type = type;
        args.source_type = source;
        args.source_count = 2;
        args.mixed = mixed;
        if (const cudaError_t error = preload(find_tiles_kernel(args)); error != cudaSuccess) return error;
      }
  return cudaSuccess;
}

}  // namespace shingle::cuda
