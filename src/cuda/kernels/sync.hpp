// Small kernels that await and notify, and that begin and end an epoch.
#pragma once

#include <cuda_runtime_api.h>

#include "hooks.hpp"

namespace shingle::cuda {

enum class SyncKind : std::uint8_t {
  await,  ///< wait for value + epoch · growth
  add,    ///< add the value
  set,    ///< set to value + epoch · growth
};

struct SyncOp {
  SyncKind kind = SyncKind::await;
  std::uint32_t* counter = nullptr;
  std::uint32_t value = 0;
  std::uint32_t growth = 0;
  bool system = false;  ///< of add: true if readers are other devices, copy engines or the host
};

inline constexpr int most_sync_ops = 64;

inline constexpr int most_flags = 16;

/// Words that hold value + epoch · growth during an epoch. Copy engines copy them to counters of peers.
struct Flags {
  std::uint32_t* words = nullptr;
  std::uint32_t value[most_flags] = {};
  std::uint32_t growth[most_flags] = {};
  int count = 0;
};

/// Begins an epoch: adds 1 to the epoch word, then sets the flags. The word starts at 2³² - 1, so that the
/// first epoch is 0.
cudaError_t launch_begin(std::uint32_t* epoch, cudaStream_t stream, const Flags& flags = {});

/// Number, operator and m of a call of a context, in one word: the low 20 bits of the number, 12 bits of the
/// operator, and m.
using CallWord = std::uint64_t;
constexpr CallWord call_word(std::uint32_t number, std::uint32_t op, std::uint32_t m) {
  return CallWord{m} << 32 | CallWord{op & 0xfff} << 20 | (number & 0xfffff);
}
constexpr std::uint32_t op_of(CallWord word) {
  return static_cast<std::uint32_t>(word >> 20) & 0xfff;
}
constexpr std::uint32_t m_of(CallWord word) {
  return static_cast<std::uint32_t>(word >> 32);
}
constexpr bool same_number(CallWord word, std::uint32_t number) {
  return ((word ^ number) & 0xfffff) == 0;
}
/// What ranks compare of a call.
struct Call {
  CallWord word = 0;          ///< written last
  std::uint64_t offsets = 0;  ///< hash of where matrices that peers access lie in the heap
};
/// What the host knows of a call.
struct CallFacts {
  std::uint32_t op = 0;
  std::uint32_t m = 0;
  std::uint64_t offsets = 0;  ///< as in Call
};
/// A rank keeps the last calls of each peer, by number modulo this.
inline constexpr std::uint32_t calls_kept = 32;

/// Where a rank's calls of a context begin and end. All pointers are to device memory.
struct CallWords {
  std::uint32_t* epoch = nullptr;    ///< number of calls begun, less one
  std::uint32_t* busy = nullptr;     ///< not 0 while a call runs
  const Call* calls = nullptr;       ///< of this rank's peers: [rank · calls_kept + number % calls_kept]
  Call* const* own_calls = nullptr;  ///< by rank: where that rank keeps the calls of this one
  std::uint32_t* const* own_begins = nullptr;  ///< by rank: where that rank counts the begins of this one
  std::int32_t world = 1;                      ///< 1 if ranks cannot access each other's memory
  std::int32_t rank = 0;
};

/// Begins a call: adds 1 to the epoch word, and tells all peers that this rank has begun this
/// call. Raises `abort` if another call runs, or if a peer has begun a different call of the same number.
cudaError_t launch_begin_call(const CallWords& words, const CallFacts& call, const Watch& watch,
                              cudaStream_t stream);

/// Ends a call: sets `count` counters to zero, and compares calls with the peers again. No peer may still
/// add to the counters in this call.
cudaError_t launch_end_call(const CallWords& words, const CallFacts& call, const Watch& watch,
                            std::uint32_t* counters, std::int32_t count, cudaStream_t stream);

/// Runs up to most_sync_ops operations in one kernel of one warp. Awaits follow earlier notifies, and
/// notifies follow earlier awaits. A notify covers all earlier work of the stream. Later work of the stream
/// may read all data that an await has acquired.
cudaError_t launch_sync(const SyncOp* ops, int count, const Watch& watch, cudaStream_t stream);

/// For tests: delays the stream. The delay is `most_ns` if `epoch` is null. Otherwise it is at most
/// `most_ns`, drawn from `salt` and the epoch at each run.
cudaError_t launch_delay(const std::uint32_t* epoch, std::uint32_t salt, std::uint64_t most_ns,
                         cudaStream_t stream);

/// Loads the kernels. Call once for each device: loading a kernel while another one waits could deadlock.
cudaError_t preload_sync();

}  // namespace shingle::cuda
