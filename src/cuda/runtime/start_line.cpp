#include "start_line.hpp"

#include <atomic>
#include <numeric>

#include "cuda/kernels/sync.hpp"
#include "cuda/nccl/api.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/device_guard.hpp"
#include "world.hpp"

namespace shingle::cuda {
namespace {

CommKey everyone(int size) {
  CommKey key;
  key.ranks.resize(static_cast<std::size_t>(size));
  std::iota(key.ranks.begin(), key.ranks.end(), 0);
  return key;
}

}  // namespace

StartLine::StartLine(CudaWorld& world) : word_(sizeof(std::uint32_t)) {
  if (world.local().size() == static_cast<std::size_t>(world.size())) return;
  const Communicator& communicator = world.communicator(everyone(world.size()));
  for (const LocalRank& rank : world.local()) {
    const DeviceGuard guard(rank.device());
    everyone_.push_back(communicator.of(rank.rank()));
    scratch_.emplace_back(sizeof(float));
  }
}

void StartLine::meet(std::size_t index, cudaStream_t stream) {
  if (everyone_.empty()) return;
  void* const one = scratch_[index].get();
  check(nccl().ncclAllReduce(one, one, 1, ncclFloat32, ncclMax, everyone_[index], stream), "ncclAllReduce");
}

void StartLine::enqueue(std::size_t index, const Watch& watch, cudaStream_t stream) {
  const SyncOp wait{SyncKind::await, word_.get<std::uint32_t>(), runs_ + 1, 0, true};
  check(launch_sync(&wait, 1, watch, stream), "launch a sync kernel");
  meet(index, stream);
}

void StartLine::go() {
  std::atomic_ref(*word_.get<std::uint32_t>()).store(++runs_, std::memory_order_release);
}

}  // namespace shingle::cuda
