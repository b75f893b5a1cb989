#include "branches.hpp"

#include <cstdlib>
#include <thread>
#include <vector>

#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/graph.hpp"
#include "cuda/raii/memory.hpp"
#include "cuda/raii/stream.hpp"
#include "deadline.hpp"
#include "local_rank.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

constexpr std::uint32_t rounds = 3;
constexpr double wait_us = 1e6;       // in which one branch must see the counts of all others
constexpr double patience_us = 30e6;  // in which the device must start both replays and finish them

/// Hardware queues that the driver creates for this process. The driver reads the variable when the process
/// first uses a device.
std::size_t hardware_queues() {
  constexpr std::size_t unless_set = 8;
  const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int queues = set != nullptr ? std::atoi(set) : 0;
  return queues > 0 ? static_cast<std::size_t>(queues) : unless_set;
}

/// Enqueues the rounds of one branch. In each round the branch adds 1 to the counter, then awaits the counts
/// of all branches: one kernel for each.
void enqueue_rounds(std::uint32_t* counter, std::uint32_t branches, const Watch& watch, cudaStream_t stream) {
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const SyncOp here{SyncKind::add, counter, 1};
    const SyncOp all{SyncKind::await, counter, (round + 1) * branches, rounds * branches};
    for (const SyncOp& op : {here, all}) check(launch_sync(&op, 1, watch, stream), "launch a sync kernel");
  }
}

}  // namespace

bool run_side_by_side(std::size_t branches) {
  if (branches < 2) return true;
  if (branches > hardware_queues()) return false;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  LocalRank alone(-1, device);
  const WaitTimeout timeout(wait_us);
  DeviceMemory words(2 * sizeof(std::uint32_t));
  words.fill(0);
  auto* const epoch = words.get<std::uint32_t>();
  const Watch watch = alone.watch(epoch, timeout);
  std::vector<Stream> streams(branches);
  const Event begun, ended;
  const Graph graph = Graph::capture(streams[0].get(), [&](cudaStream_t origin) {
    begun.record(origin);
    for (const Stream& stream : streams) {
      if (stream.get() != origin) begun.make_wait(stream.get());
      enqueue_rounds(epoch + 1, static_cast<std::uint32_t>(branches), watch, stream.get());
    }
    for (const Stream& stream : streams) {
      if (stream.get() == origin) continue;
      ended.record(stream.get());
      ended.make_wait(origin);
    }
  });
  const Event done;
  for (int replay = 0; replay < 2; ++replay) {
    graph.launch(streams[0].get());
    check(launch_begin(epoch, streams[0].get()), "launch the begin");
  }
  done.record(streams[0].get());
  const auto deadline = deadline_in(patience_us);
  while (!done.done()) {
    if (Clock::now() > deadline) {
      alone.abort();
      throw Timeout("a test graph of wait kernels did not end");
    }
    std::this_thread::sleep_for(nap);
  }
  return !alone.aborted();
}

}  // namespace shingle::cuda
