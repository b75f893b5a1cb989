// One block for each expert, and one for what is no expert's.
//
// An expert's slots go to the choices in the order of routed rows: choice 0 of all tokens, then choice 1, ….
// Each warp of its block has consecutive tokens. It counts how often they choose the expert, by choice; a sum
// over choices and warps gives the warp's first slot of each choice; then it walks its tokens again.
#include "assign_slots.hpp"

#include "cuda/kernels/device_facts.hpp"

namespace shingle::cuda {
namespace {

constexpr int slot_threads = 512;
constexpr int slot_warps = slot_threads / 32;

/// Calls visit(token, choice, id) for the tokens of this warp, with all lanes together; `token` may be beyond
/// the last, with an id of no_row.
template <class Visit>
__device__ void for_each_choice(const AssignSlotsArgs& args, Visit&& visit) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int each = (args.tokens + slot_threads - 1) / slot_threads * 32;  // tokens of a warp
  const int end = min((warp + 1) * each, args.tokens);
  for (int first = warp * each; first < end; first += 32)
    for (int choice = 0; choice < args.choices; ++choice) {
      const int token = first + lane;
      const std::int64_t at = std::int64_t{token} * args.choices + choice;
      visit(token, choice, token < end ? args.ids[at] : no_row);
    }
}

/// Replaces `count` numbers by the sums of those before them, and returns the sum of all. Called by a warp.
__device__ int sum_before(int* numbers, int count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int total = 0;
  for (int first = 0; first < count; first += 32) {
    const int own = first + lane < count ? numbers[first + lane] : 0;
    int sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += below;
    }
    if (first + lane < count) numbers[first + lane] = total + sum - own;
    total += __shfl_sync(~0u, sum, 31);
  }
  return total;
}

__device__ void fill_expert(const AssignSlotsArgs& args, int expert, int* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int* const next = shared;  // [choice][warp]: chosen before, once it is summed
  int* const chosen = shared + args.choices * slot_warps;
  for (int i = static_cast<int>(threadIdx.x); i < args.choices * slot_warps; i += slot_threads) next[i] = 0;
  __syncthreads();
  for_each_choice(args, [&](int, int choice, std::int32_t id) {
    const unsigned found = __ballot_sync(~0u, id == expert);
    if (lane == 0) next[choice * slot_warps + warp] += __popc(found);
  });
  __syncthreads();
  if (warp == 0) {
    const int total = sum_before(next, args.choices * slot_warps);
    if (lane == 0) *chosen = total;
  }
  __syncthreads();
  std::int32_t* const rows = args.row_of + std::int64_t{expert} * args.capacity;
  for_each_choice(args, [&](int token, int choice, std::int32_t id) {
    const unsigned found = __ballot_sync(~0u, id == expert);
    const int before = next[choice * slot_warps + warp];
    const int slot = before + __popc(found & ((1u << lane) - 1));
    if (id == expert) {
      const bool fits = slot < args.capacity;
      if (fits) rows[slot] = token;
      args.slot_of[std::int64_t{token} * args.choices + choice] =
          fits ? expert * args.capacity + slot : no_row;
    }
    __syncwarp();  // all lanes have read what lane 0 replaces
    if (lane == 0) next[choice * slot_warps + warp] = before + __popc(found);
    __syncwarp();
  });
  const int filled = min(*chosen, args.capacity);
  for (int slot = filled + static_cast<int>(threadIdx.x); slot < args.capacity; slot += slot_threads)
    rows[slot] = no_row;
  if (threadIdx.x == 0) args.counts[expert] = filled;
}

/// Choices that are no expert's, tokens that do not exist, and the numbers of what is dropped.
__device__ void fill_rest(const AssignSlotsArgs& args, int* shared) {
  int* const chosen = shared;  // by expert
  int* const dropped = shared + args.experts;
  for (int i = static_cast<int>(threadIdx.x); i < args.experts + 2; i += slot_threads) shared[i] = 0;
  __syncthreads();
  const std::int64_t existing = std::int64_t{args.tokens} * args.choices;
  const std::int64_t all = std::int64_t{args.most_tokens} * args.choices;
  int unknown = 0, full = 0;
  for (std::int64_t i = threadIdx.x; i < existing; i += slot_threads) {
    const std::int32_t id = args.ids[i];
    if (id >= 0 && id < args.experts) {
      atomicAdd(&chosen[id], 1);
      continue;
    }
    args.slot_of[i] = no_row;
    unknown += id != no_row;
  }
  for (std::int64_t i = existing + threadIdx.x; i < all; i += slot_threads) args.slot_of[i] = no_token;
  __syncthreads();
  for (int expert = static_cast<int>(threadIdx.x); expert < args.experts; expert += slot_threads)
    full += max(chosen[expert] - args.capacity, 0);
  atomicAdd(&dropped[0], full);
  atomicAdd(&dropped[1], unknown);
  __syncthreads();
  if (threadIdx.x < 2) args.dropped[threadIdx.x] = dropped[threadIdx.x];
}

__global__ void __launch_bounds__(slot_threads) slots_kernel(const __grid_constant__ AssignSlotsArgs args) {
  extern __shared__ int shared[];
  const int expert = static_cast<int>(blockIdx.x);
  if (expert < args.experts)
    fill_expert(args, expert, shared);
  else
    fill_rest(args, shared);
}

std::size_t shared_bytes(const AssignSlotsArgs& args) {
  const int of_expert = args.choices * slot_warps + 1, of_rest = args.experts + 2;
  return static_cast<std::size_t>(of_expert > of_rest ? of_expert : of_rest) * sizeof(int);
}

}  // namespace

cudaError_t launch_assign_slots(const AssignSlotsArgs& args, cudaStream_t stream) {
  static_assert((most_experts + 2) * sizeof(int) <= 48 << 10 && most_choices * slot_warps < most_experts,
                "shared memory that needs no permission");
  if (args.experts < 1 || args.experts > most_experts || args.choices < 1 || args.choices > most_choices ||
      args.capacity < 1 || args.tokens < 0 || args.tokens > args.most_tokens)
    return cudaErrorInvalidValue;
  slots_kernel<<<static_cast<unsigned>(args.experts + 1), slot_threads, shared_bytes(args), stream>>>(args);
  return cudaGetLastError();
}

cudaError_t preload_assign_slots() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, slots_kernel);
}

}  // namespace shingle::cuda
