// One thread for each choice of a token and for each slot. A thread adds up the few counts that it needs:
// they are in the cache, and no thread waits for another.
#include "merge_slots.hpp"

namespace shingle::cuda {
namespace {

constexpr int merging_threads = 256;

/// Slots of an expert that have a token of one of the first `ranks` ranks.
__device__ __forceinline__ std::int32_t filled_before(const MergeSlotsArgs& args, std::int32_t expert,
                                                      std::int32_t ranks) {
  std::int32_t filled = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank)
    filled += args.counts[std::int64_t{rank} * args.experts + expert];
  return filled;
}

__device__ void merge_choice(const MergeSlotsArgs& args, std::int64_t choice) {
  std::int32_t slot = args.slot_of[choice];
  if (slot >= 0) {
    const auto token = static_cast<std::int32_t>(choice / args.choices);
    const std::int32_t expert = slot / args.capacity;
    slot = expert * args.ranks * args.capacity + filled_before(args, expert, token / args.tokens) +
           slot % args.capacity;
    if (args.token_of != nullptr) args.token_of[slot] = token;
  }
  if (args.merged_of != nullptr) args.merged_of[choice] = slot;
}

/// A merged slot, and the row by expert of the same number.
__device__ void merge_slot(const MergeSlotsArgs& args, std::int32_t slot) {
  const std::int32_t of_expert = args.ranks * args.capacity, expert = slot / of_expert;
  const std::int32_t begin = expert * of_expert, place = slot - begin, source = place / args.capacity;
  std::int32_t filled = 0;     // by the ranks so far
  std::int32_t to = no_row;    // the merged slot of the row
  std::int32_t from = no_row;  // the row of the merged slot
  for (std::int32_t rank = 0; rank < args.ranks; ++rank) {
    const std::int32_t count = args.counts[std::int64_t{rank} * args.experts + expert];
    const std::int32_t in_rank = place - rank * args.capacity;
    if (rank == source && in_rank < count) to = begin + filled + in_rank;
    if (place >= filled && place < filled + count) from = begin + rank * args.capacity + place - filled;
    filled += count;
  }
  if (place == 0) args.live[expert] = filled;
  if (args.token_of != nullptr && place >= filled) args.token_of[slot] = no_row;
  if (args.row_of != nullptr) args.row_of[slot] = from;
  if (args.slot_at != nullptr) args.slot_at[slot] = to;
}

__global__ void __launch_bounds__(merging_threads)
    merge_slots_kernel(const __grid_constant__ MergeSlotsArgs args) {
  const std::int64_t choices = std::int64_t{args.ranks} * args.tokens * args.choices;
  const std::int64_t slots = std::int64_t{args.experts} * args.ranks * args.capacity;
  const std::int64_t step = std::int64_t{gridDim.x} * merging_threads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * merging_threads + threadIdx.x; i < choices + slots;
       i += step) {
    if (i < choices)
      merge_choice(args, i);
    else
      merge_slot(args, static_cast<std::int32_t>(i - choices));
  }
}

}  // namespace

cudaError_t launch_merge_slots(const MergeSlotsArgs& args, cudaStream_t stream) {
  constexpr std::int64_t most_blocks = 1024;
  if (args.ranks < 1 || args.tokens < 1 || args.choices < 1 || args.experts < 1 || args.capacity < 1 ||
      args.counts == nullptr || args.slot_of == nullptr || args.live == nullptr)
    return cudaErrorInvalidValue;
  const std::int64_t items = std::int64_t{args.ranks} * (std::int64_t{args.tokens} * args.choices +
                                                         std::int64_t{args.experts} * args.capacity);
  const std::int64_t blocks = (items + merging_threads - 1) / merging_threads;
  merge_slots_kernel<<<static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), merging_threads, 0,
                       stream>>>(args);
  return cudaGetLastError();
}

cudaError_t preload_merge_slots() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, merge_slots_kernel);
}

}  // namespace shingle::cuda
