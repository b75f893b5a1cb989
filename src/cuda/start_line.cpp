#include "start_line.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/world.hpp"
#include "shingle/base/error.hpp"
#include "shingle/base/units.hpp"

namespace shingle::cuda {
namespace {

CommKey everyone(int size) {
  CommKey key;
  key.ranks.resize(static_cast<std::size_t>(size));
  std::iota(key.ranks.begin(), key.ranks.end(), 0);
  return key;
}

}  // namespace

StartLine::StartLine(CudaWorld& world) : world_(world), word_(sizeof(std::uint32_t)) {
  if (world.local().size() == static_cast<std::size_t>(world.size())) return;
  world.communicator(everyone(world.size()));
  for (const LocalRank& rank : world.local()) {
    const DeviceGuard guard(rank.device());
    scratch_.emplace_back(sizeof(float));
  }
  world.in_step([&] { connect(); });
}

/// The library connects ranks in the first collective, which has to be behind nothing that waits for the
/// host.
void StartLine::connect() {
  std::vector<Stream> streams;
  check(ncclGroupStart(), "ncclGroupStart");
  for (std::size_t index = 0; index < scratch_.size(); ++index) {
    const DeviceGuard guard(world_.local()[index].device());
    enqueue_barrier(index, streams.emplace_back().get());
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
  const auto begin = std::chrono::steady_clock::now();
  for (const Stream& stream : streams) {
    const Event done;
    done.record(stream.get());
    while (!done.done()) {
      world_.watch();
      const std::chrono::duration<double, std::micro> waited = std::chrono::steady_clock::now() - begin;
      if (waited.count() > world_.options().timeout_us)
        throw Timeout(fmt::format("not all ranks came to the start line within {}",
                                  format_us(world_.options().timeout_us)));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

void StartLine::enqueue(std::size_t index, const Watch& watch, cudaStream_t stream) {
  const SyncOp wait{SyncKind::await, word_.get<std::uint32_t>(), runs_ + 1, 0, true};
  check(launch_sync(&wait, 1, watch, stream), "launch a sync kernel");
  if (!scratch_.empty()) enqueue_barrier(index, stream);
}

void StartLine::enqueue_barrier(std::size_t index, cudaStream_t stream) {
  void* const one = scratch_[index].get();
  const ncclComm_t comm = world_.communicator(everyone(world_.size())).of(world_.local()[index].rank());
  check(ncclAllReduce(one, one, 1, ncclFloat32, ncclMax, comm, stream), "ncclAllReduce");
}

void StartLine::go() {
  std::atomic_ref(*word_.get<std::uint32_t>()).store(++runs_, std::memory_order_release);
}

}  // namespace shingle::cuda
