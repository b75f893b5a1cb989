// Small kernels that await, notify, and begin an epoch.
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
