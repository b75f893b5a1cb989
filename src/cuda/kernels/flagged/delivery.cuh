// The kernel of a delivery (kernels/flagged.hpp).
//
// A cluster takes whole rows, and each of its CTAs a slice of each. Phases of a CTA:
//
//   1. The first CTA greets all other ranks.
//   2. Each thread stores its chunks of the cluster's rows into other ranks' memory.
//   3. The CTAs clear what arrived in the last turn.
//   4. For each row to take: every thread loads its chunks of this rank's own rows, residual and weight. It
//      polls its chunks of other ranks' rows, sums all in their order in fp32, and applies bias, activation
//      and residual. With a norm, the cluster sums the squares, and every thread scales its chunks.
//   5. The first CTA awaits the greetings of all other ranks, and compares them with its own.
//   6. The last CTA to end counts the turn.
//
// Memory order: a word that is not `flag` is complete, and no other data depend on it. The kernel waits for
// the end of the kernels before it, and the kernels behind it for its end. With `product_sent` it begins
// before the product's kernel ends, but after all kernels before that one: the product's kernel lets it start
// when they have ended. What they wrote is read past L1, which may hold older lines. It then waits for the
// product's end before its first store to a matrix, which the product may still read.
//
// Tried and slower, for 1 to 256 rows: two rows at a time, whose loads are in flight together. Registers are
// short.
//
// Checks: all CTAs are resident (prepare_delivery). A CTA sends all its rows before it waits.
#pragma once

#include "cuda/kernels/elementwise/activation.cuh"
#include "cuda/kernels/elementwise/chunk.cuh"
#include "cuda/kernels/flagged.hpp"
#include "cuda/kernels/flagged/words.cuh"
#include "cuda/kernels/ptx/clock.cuh"
#include "cuda/kernels/ptx/cluster.cuh"
#include "cuda/kernels/ptx/grids.cuh"
#include "cuda/kernels/wait.cuh"

namespace shingle::cuda {

/// Threads of a CTA. Those with one chunk of a row have 64 registers, and a CTA half of an SM's. The rest is
/// for a GEMM that loads its weights early (kernels/skinny.hpp).
inline constexpr int most_delivery_threads = 512;
inline constexpr int most_slices = 8;  ///< CTAs of a cluster

template <class T, int chunks, bool product_sent>
struct Delivery {
  static constexpr int length = vector_bytes / static_cast<int>(sizeof(T));
  using Values = float[chunks][length];

  const DeliveryArgs& args;
  std::uint32_t turn;
  char* own;          ///< begin of this rank's copy of the turn
  bool over = false;  ///< the rank's waits were ended

  __device__ Delivery(const DeliveryArgs& of, std::uint32_t number)
      : args(of), turn(number), own(copy_of(of.flagged, of.flagged.rank, number)) {}

  __device__ int row_bytes() const { return args.cols * static_cast<int>(sizeof(T)); }
  __device__ int row_chunks() const { return row_bytes() / vector_bytes; }
  __device__ int chunk(int j) const {
    return static_cast<int>(threadIdx.x + (ptx::cluster_rank() + j * ptx::cluster_ctas()) * blockDim.x);
  }
  __device__ char* row_of(const DeliveredRows& rows, int row) const {
    char* const first =
        rows.flagged ? own + reinterpret_cast<std::intptr_t>(rows.at) : rows.at + args.shifts.of[rows.matrix];
    return first + static_cast<std::int64_t>(row) * row_bytes();
  }

  __device__ uint4 greeting() const {
    constexpr std::uint32_t never_flag = 1;  // the lowest bit
    return {turn << 1 | never_flag, args.plan << 1 | never_flag, args.m << 1 | never_flag, never_flag};
  }
  __device__ uint4* greeting_of(char* begin, int rank) const {
    return reinterpret_cast<uint4*>(begin + rank * greeting_bytes);
  }

  /// Raises `abort` if a peer's greeting has arrived and is another delivery's.
  __device__ void compare(int peer, const uint4& other) {
    const uint4 mine = greeting();
    if (other.x == mine.x && other.y == mine.y && other.z == mine.z) return;
    over = true;
    if (atomicExch(args.watch.claim, 1u) != 0) return;
    volatile Stall& stall = *args.watch.stall;
    stall.counter = reinterpret_cast<const std::uint32_t*>(greeting_of(own, peer));
    stall.own_call = std::uint64_t{mine.y} << 32 | mine.z >> 1;
    stall.other_call = std::uint64_t{other.y} << 32 | other.z >> 1;
    ptx::store_release_sys(args.watch.abort, 1u);
  }

  /// Between two polls. Of many CTAs only the first warps poll without a pause: behind other kernels ranks
  /// are apart, and the polls of all threads would hold up the stores that they wait for. The other warps see
  /// what has arrived up to two pauses later, and the end of the rank's waits after some milliseconds.
  __device__ static void pause(std::uint32_t polls) {
    constexpr std::uint32_t brisk = 4, many_ctas = 32, pause_ns = 2000;
    if (polls > brisk && threadIdx.x >= 32 && gridDim.x > many_ctas) ptx::nano_sleep(pause_ns);
  }

  /// Polls 16 bytes until they have arrived. `seen`: what a first load saw. Returns what has arrived, or
  /// anything if the rank's waits were ended.
  __device__ uint4 await(const uint4* at, uint4 seen, int peer) {
    std::uint64_t deadline = 0;
    for (std::uint32_t polls = 1; !has_arrived(seen) && !over; ++polls) {
      if (polls % polls_between_looks == 0) {
        const std::uint64_t now = ptx::global_timer();
        if (deadline == 0) deadline = now + *args.watch.timeout_ns;
        const uint4* const greeted = greeting_of(own, peer);
        if (const uint4 other = ptx::load_relaxed_sys(greeted); has_arrived(other)) compare(peer, other);
        if (now >= deadline) give_up({reinterpret_cast<const std::uint32_t*>(greeted)}, turn, 0, args.watch);
        over = over || ptx::load_relaxed_sys(args.watch.abort) != 0;
      }
      pause(polls);
      seen = ptx::load_relaxed_sys(at);
    }
    return seen;
  }

  __device__ void greet() const {
    const int peer = static_cast<int>(threadIdx.x);
    if (blockIdx.x != 0 || peer >= args.flagged.world || peer == args.flagged.rank) return;
    ptx::store_relaxed_sys(greeting_of(copy_of(args.flagged, peer, turn), args.flagged.rank), greeting());
  }

  __device__ void await_greetings() {
    const int peer = static_cast<int>(threadIdx.x);
    if (blockIdx.x != 0 || peer >= args.flagged.world || peer == args.flagged.rank) return;
    const uint4* const at = greeting_of(own, peer);
    const uint4 other = await(at, ptx::load_relaxed_sys(at), peer);
    if (!over) compare(peer, other);
  }

  __device__ void send(const SentRows& rows, int row) const {
    const char* const from = row_of(rows.from, row);
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      if (chunk(j) >= row_chunks()) break;
      Chunk<T, length> loaded;
      load(loaded, from + chunk(j) * vector_bytes, length);
      const uint4 value = without_flags({loaded.word[0], loaded.word[1], loaded.word[2], loaded.word[3]});
      const std::int64_t to =
          rows.to + static_cast<std::int64_t>(row) * row_bytes() + chunk(j) * vector_bytes;
      for (int peer = 0; peer < args.flagged.world; ++peer)
        if (rows.ranks >> peer & 1)
          ptx::store_relaxed_sys(reinterpret_cast<uint4*>(copy_of(args.flagged, peer, turn) + to), value);
    }
  }

  __device__ void clear(const FlaggedExtent& last_extent) const {
    auto* const last = reinterpret_cast<uint4*>(copy_of(args.flagged, args.flagged.rank, turn + copies - 1));
    const uint4 empty{flag, flag, flag, flag};
    const std::uint32_t hole = last_extent.hole_end - last_extent.hole;
    for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < last_extent.used - hole;
         i += gridDim.x * blockDim.x)
      last[i < last_extent.hole ? i : i + hole] = empty;
  }

  using Row = Chunk<T, length>[chunks];
  __device__ void load_row(const char* row, Row& into) const {
    const bool past_l1 = product_sent && aligned(row);
    if (product_sent && !past_l1) ptx::await_prerequisites();
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      if (chunk(j) >= row_chunks()) break;
      const char* const at = row + chunk(j) * vector_bytes;
      if (past_l1)
        into[j] = as_chunk(ptx::load_relaxed_sys(reinterpret_cast<const uint4*>(at)));
      else
        load(into[j], at, length);
    }
  }
  __device__ static Chunk<T, length> as_chunk(const uint4& v) { return {{v.x, v.y, v.z, v.w}}; }
  __device__ void store_row(char* row, const Values& x) const {
#pragma unroll
    for (int j = 0; j < chunks; ++j)
      if (chunk(j) < row_chunks()) store(narrowed<T>(x[j]), row + chunk(j) * vector_bytes, length);
  }

  /// Adds the sources of a row in their order. First it loads all that it can without waiting.
  __device__ __forceinline__ void add_sources(const TakenRows& rows, int row, Values& x) {
    constexpr int batch = chunks <= 2 ? 2 : 1;  // sources whose loads are in flight
    for (int first = 0; first < rows.count; first += batch) {
      uint4 seen[batch][chunks];
#pragma unroll
      for (int s = 0; s < batch; ++s) {
        if (first + s >= rows.count) break;
        const DeliveredRows& source = args.sources[rows.first + first + s];
        const char* const at = row_of(source, row);
#pragma unroll
        for (int j = 0; j < chunks; ++j) {
          if (chunk(j) >= row_chunks()) break;
          if (source.flagged) {
            seen[s][j] = ptx::load_relaxed_sys(reinterpret_cast<const uint4*>(at + chunk(j) * vector_bytes));
          } else {
            Chunk<T, length> loaded;
            load(loaded, at + chunk(j) * vector_bytes, length);
            seen[s][j] = {loaded.word[0], loaded.word[1], loaded.word[2], loaded.word[3]};
          }
        }
      }
#pragma unroll
      for (int s = 0; s < batch; ++s) {
        if (first + s >= rows.count) break;
        const DeliveredRows& source = args.sources[rows.first + first + s];
        const char* const at = row_of(source, row);
#pragma unroll
        for (int j = 0; j < chunks; ++j) {
          if (chunk(j) >= row_chunks()) break;
          uint4 value = seen[s][j];
          if (source.flagged)
            value = await(reinterpret_cast<const uint4*>(at + chunk(j) * vector_bytes), value, source.source);
          add(x[j], as_chunk(value));
        }
      }
    }
  }

  /// The sum of a value over the cluster.
  __device__ float sum_over_threads(float value, float* warps) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    const std::uint32_t slices = ptx::cluster_ctas(), count = blockDim.x / 32;
    if (threadIdx.x % 32 < slices)  // a lane for each CTA of the cluster
      ptx::store_in_cluster(warps + ptx::cluster_rank() * count + threadIdx.x / 32, threadIdx.x % 32, value);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    float sum = 0;
    for (std::uint32_t i = threadIdx.x % 32; i < slices * count; i += 32) sum += warps[i];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
  }

  __device__ __forceinline__ void take(const TakenRows& rows, int row, float* warps) {
    Row residual, weight, bias;
    if (args.has_residual) load_row(row_of(rows.residual, row), residual);
    if (args.norm) load_row(row_of(args.norm_weight, 0), weight);
    if (args.bias.at != nullptr) load_row(row_of(args.bias, 0), bias);
    Values x = {};
    add_sources(rows, row, x);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      if (args.bias.at != nullptr) add(x[j], bias[j]);
      activate(args.activate, x[j]);
      if (args.has_residual) add(x[j], residual[j]);
      if (chunk(j) >= row_chunks()) continue;
#pragma unroll
      for (int i = 0; i < length; ++i) squares += x[j][i] * x[j][i];
    }
    if (product_sent) ptx::await_prerequisites();
    if (args.has_residual) store_row(row_of(rows.sum, row), x);
    if (args.norm) {
      const float mean = sum_over_threads(squares, warps) / static_cast<float>(args.cols);
      const float inverse = 1.0f / sqrtf(mean + args.epsilon);
#pragma unroll
      for (int j = 0; j < chunks; ++j)
#pragma unroll
        for (int i = 0; i < length; ++i) x[j][i] = x[j][i] * inverse * widened(weight[j], i);
    }
    store_row(row_of(rows.to, row), x);
  }
};

/// The turn, and what the last one may have received.
struct Begin {
  std::uint32_t turn;
  FlaggedExtent last;
};

/// `past_l1`: L1 may hold older values. One thread then reads them for the CTA, because all CTAs read the
/// same place, and L2 serves one request after another.
template <bool past_l1>
__device__ __forceinline__ Begin begin_of(const FlaggedState& state) {
  if constexpr (!past_l1) return {state.turn, state.last};
  __shared__ Begin begin;
  if (threadIdx.x == 0)
    begin = {ptx::load_relaxed_sys(&state.turn),
             {ptx::load_relaxed_sys(&state.last.used), ptx::load_relaxed_sys(&state.last.hole),
              ptx::load_relaxed_sys(&state.last.hole_end)}};
  __syncthreads();
  return begin;
}

/// Calls visit(rows, row) for every row of several lists that the cluster works on.
template <class Rows, class Visit>
__device__ __forceinline__ void for_each_row(const Rows* lists, int count, Visit&& visit) {
  const int slices = static_cast<int>(ptx::cluster_ctas());
  const int cluster = static_cast<int>(blockIdx.x) / slices, clusters = static_cast<int>(gridDim.x) / slices;
  int before = 0;
  for (int i = 0; i < count; ++i) {
    // The first row of the list that is the cluster's: row numbers count over all lists.
    int row = cluster - before % clusters;
    if (row < 0) row += clusters;
    for (; row < lists[i].rows; row += clusters) visit(lists[i], row);
    before += lists[i].rows;
  }
}

template <class T, int chunks, bool product_sent>
__global__ void __launch_bounds__(most_delivery_threads, chunks == 1 ? 2 : 1)
    delivery_kernel(const __grid_constant__ DeliveryArgs args) {
  // In turn: a row's sums are read until the barrier of the row behind it.
  __shared__ float warps[2][most_slices * most_delivery_threads / 32];
  ptx::launch_dependents();
  ptx::cluster_arrive();
  if (!product_sent) ptx::await_prerequisites();
  FlaggedState& state = *args.flagged.state;
  const auto [turn, last] = begin_of<product_sent>(state);
  Delivery<T, chunks, product_sent> delivery(args, turn);
  delivery.greet();
  for_each_row(args.sends, args.sent, [&](const SentRows& rows, int row) { delivery.send(rows, row); });
  delivery.clear(last);
  ptx::cluster_wait();  // all CTAs of the cluster have begun: their shared memory may be written
  int parity = 0;
  for_each_row(args.takes, args.taken, [&](const TakenRows& rows, int row) {
    delivery.take(rows, row, warps[parity]);
    parity ^= 1;
  });
  delivery.await_greetings();
  if (product_sent) ptx::await_prerequisites();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1 && atomicAdd(&state.ended, 1u) != gridDim.x - 1) return;
  state.ended = 0;
  state.last = args.extent;
  state.turn = turn + 1 < turns ? turn + 1 : 0;
}

}  // namespace shingle::cuda
