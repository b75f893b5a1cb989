// Sync kernels of one warp, between the steps of a lane: they await, add and set counters.
//
// Phases: consecutive awaits run in parallel, one lane of the warp for each, and so do consecutive adds. A
// release at system scope takes a microsecond, however little there is to release. Sets run one after
// another.
//
// Memory order: a sync kernel may start early (programmatic dependent launch). It first waits for the end of
// the kernels before it, so that the release of an add covers them all. After __syncwarp every lane has what
// one lane acquired. A later kernel of the stream follows the acquires: it starts after this kernel, or waits
// for it.
//
// Checks: at most most_sync_ops operations in a launch.
#include "count.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "device_facts.hpp"
#include "launch_config.hpp"
#include "sync.hpp"
#include "wait.cuh"

namespace shingle::cuda {
namespace {

constexpr int warp = 32;

struct Ops {
  SyncOp of[most_sync_ops];
  int count;
};

__global__ void __launch_bounds__(warp)
    begin_kernel(std::uint32_t* epoch, const __grid_constant__ Flags flags) {
  ptx::launch_dependents();
  const std::uint32_t begun = *epoch + 1;
  __syncwarp();
  if (threadIdx.x == 0) *epoch = begun;
  for (int i = static_cast<int>(threadIdx.x); i < flags.count; i += warp)
    flags.words[i] = flags.value[i] + begun * flags.growth[i];
}

/// Records a failure that is not a wait's, and ends the rank's waits. Only the first failure counts.
__device__ void fail(const Watch& watch, const std::uint32_t* at, CallWord own, CallWord other) {
  if (atomicExch(watch.claim, 1u) != 0) return;
  volatile Stall& stall = *watch.stall;
  stall.counter = at;
  stall.own_call = own;
  stall.other_call = other;
  ptx::store_release_sys(watch.abort, 1u);
}

/// Compares this rank's call with those that its peers have begun. A peer that has not begun it yet, or that
/// is many calls ahead, is not compared.
__device__ void compare_calls(const CallWords& words, const Call& own, std::uint32_t number,
                              const Watch& watch) {
  for (int peer = static_cast<int>(threadIdx.x); peer < words.world; peer += warp) {
    if (peer == words.rank) continue;
    const Call* const at = words.calls + peer * calls_kept + number % calls_kept;
    const CallWord other = ptx::load_acquire_sys(&at->word);
    if (other == 0 || !same_number(other, number)) continue;
    if (other != own.word || ptx::load_acquire_sys(&at->offsets) != own.offsets)
      fail(watch, reinterpret_cast<const std::uint32_t*>(at), own.word, other);
  }
}

__global__ void __launch_bounds__(warp)
    begin_call_kernel(const CallWords words, const CallFacts call, const Watch watch) {
  // Kernels after this one may start early, but not before all that precedes the call is done.
  ptx::await_prerequisites();
  ptx::launch_dependents();
  const std::uint32_t number = *words.epoch + 1;
  const Call own{call_word(number, call.op, call.m), call.offsets};
  __syncwarp();
  if (threadIdx.x == 0) {
    *words.epoch = number;
    if (atomicExch(words.busy, 1u) != 0) fail(watch, words.busy, own.word, own.word);
  }
  for (int peer = static_cast<int>(threadIdx.x); peer < words.world; peer += warp) {
    if (peer == words.rank) continue;
    Call* const at = words.own_calls[peer] + number % calls_kept;
    at->offsets = own.offsets;
    ptx::store_release_sys(&at->word, own.word);
    ptx::store_release_sys(words.own_begins[peer], number + 1);
  }
  compare_calls(words, own, number, watch);
}

__global__ void end_call_kernel(const CallWords words, const CallFacts call, const Watch watch,
                                std::uint32_t* counters, std::int32_t count) {
  ptx::launch_dependents();
  ptx::await_prerequisites();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) counters[i] = 0;
  if (threadIdx.x >= warp) return;
  const std::uint32_t number = *words.epoch;
  compare_calls(words, {call_word(number, call.op, call.m), call.offsets}, number, watch);
  if (threadIdx.x == 0) *words.busy = 0;
}

__device__ void carry_out(const SyncOp& op, std::uint32_t epoch, const Watch& watch) {
  if (op.kind == SyncKind::await) {
    // also goes on if waits were ended: counters must keep their totals
    wait_for({op.counter, op.value, op.growth}, epoch, watch);
  } else if (op.kind == SyncKind::set) {
    ptx::store_release_sys(op.counter, op.value + epoch * op.growth);
  } else {
    add_release(op.counter, op.value, op.system);
  }
}

/// True if two consecutive operations may run in any order. Sets may not: two may have the same counter.
__device__ bool together(SyncKind a, SyncKind b) {
  return a == b && a != SyncKind::set;
}

__global__ void __launch_bounds__(warp) sync_kernel(const __grid_constant__ Ops ops, const Watch watch) {
  ptx::launch_dependents();
  ptx::await_prerequisites();
  const std::uint32_t epoch = *watch.epoch;
  for (int first = 0, last = 0; first < ops.count; first = last) {
    last = first + 1;
    while (last < ops.count && together(ops.of[first].kind, ops.of[last].kind)) ++last;
    for (int i = first + static_cast<int>(threadIdx.x); i < last; i += warp)
      carry_out(ops.of[i], epoch, watch);
    __syncwarp();
  }
}

__global__ void delay_kernel(const std::uint32_t* epoch, std::uint32_t salt, std::uint64_t most_ns) {
  std::uint64_t ns = most_ns;
  if (epoch != nullptr) {
    std::uint64_t mixed = (*epoch + 1ull) * 0x9e3779b97f4a7c15ull ^ (salt + 1ull) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 31) * 0x94d049bb133111ebull;
    ns = (mixed >> 32) % (most_ns + 1);
  }
  const std::uint64_t end = ptx::global_timer() + ns;
  while (ptx::global_timer() < end) ptx::nano_sleep(500);
}

/// Launches a kernel that may start early, on devices that can. It hides the launch latency: the kernel is
/// resident when the previous kernel ends.
template <class... Parameters, class... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), int ctas, int threads, cudaStream_t stream,
                         const Arguments&... arguments) {
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts); error != cudaSuccess) return error;
  const LaunchConfig config(ctas, threads, 0, stream, {1, ptx::launch_early(facts.major)});
  return cudaLaunchKernelEx(&config.get(), kernel, arguments...);
}

}  // namespace

cudaError_t launch_begin(std::uint32_t* epoch, cudaStream_t stream, const Flags& flags) {
  begin_kernel<<<1, warp, 0, stream>>>(epoch, flags);
  return cudaGetLastError();
}

cudaError_t launch_begin_call(const CallWords& words, const CallFacts& call, const Watch& watch,
                              cudaStream_t stream) {
  return launch_early(begin_call_kernel, 1, warp, stream, words, call, watch);
}

cudaError_t launch_end_call(const CallWords& words, const CallFacts& call, const Watch& watch,
                            std::uint32_t* counters, std::int32_t count, cudaStream_t stream) {
  constexpr int most_threads = 512;
  const int threads = count <= warp          ? warp
                      : count < most_threads ? (count + warp - 1) / warp * warp
                                             : most_threads;
  return launch_early(end_call_kernel, 1, threads, stream, words, call, watch, counters, count);
}

cudaError_t launch_sync(const SyncOp* ops, int count, const Watch& watch, cudaStream_t stream) {
  if (count < 0 || count > most_sync_ops) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  Ops all{};
  all.count = count;
  for (int i = 0; i < count; ++i) all.of[i] = ops[i];
  return launch_early(sync_kernel, 1, warp, stream, all, watch);
}

cudaError_t launch_delay(const std::uint32_t* epoch, std::uint32_t salt, std::uint64_t most_ns,
                         cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(epoch, salt, most_ns);
  return cudaGetLastError();
}

cudaError_t preload_sync() {
  cudaFuncAttributes attributes;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, delay_kernel)) return error;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, begin_kernel)) return error;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, begin_call_kernel)) return error;
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, end_call_kernel)) return error;
  return cudaFuncGetAttributes(&attributes, sync_kernel);
}

}  // namespace shingle::cuda
