// Small kernels that wait, count and begin an epoch.
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
  bool system = false;  ///< of a count: whether its readers are other devices, copy engines or the host
};

inline constexpr int most_sync_ops = 64;

inline constexpr int most_flags = 16;

/// Words that hold, throughout an epoch, value + epoch · growth: what copies bring to counts of peers.
struct Flags {
  std::uint32_t* words = nullptr;
  std::uint32_t value[most_flags] = {};
  std::uint32_t growth[most_flags] = {};
  int count = 0;
};

/// Begins an epoch: adds one to the word, and sets the flags. It starts at 2³² - 1, so that the first epoch
/// is 0.
cudaError_t launch_begin(std::uint32_t* epoch, cudaStream_t stream, const Flags& flags = {});

/// Does up to most_sync_ops of these, in one kernel of one warp: waits come behind the counts before them,
/// and counts behind the waits. A count covers everything before it in the stream; what follows in the stream
/// may read what an await was told of.
cudaError_t launch_sync(const SyncOp* ops, int count, const Watch& watch, cudaStream_t stream);

/// Holds up what follows in the stream, to see what comes of it: for up to `most_ns`, drawn anew from `salt`
/// and the epoch each time that it runs, or for just that long where `epoch` is null.
cudaError_t launch_delay(const std::uint32_t* epoch, std::uint32_t salt, std::uint64_t most_ns,
                         cudaStream_t stream);

/// Loads the kernels: a kernel that is first used while another waits could hang. Once a device.
cudaError_t preload_sync();

}  // namespace shingle::cuda
