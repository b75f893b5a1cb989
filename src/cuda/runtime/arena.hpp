// The arena of a context: its memory on all ranks, and what its plans share on the local ones.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "connect.hpp"
#include "cuda/commands/scratch.hpp"
#include "cuda/commands/tables.hpp"
#include "cuda/memory/arena.hpp"
#include "cuda/memory/memory.hpp"
#include "cuda/raii/memory_pool.hpp"
#include "launchers.hpp"
#include "monitor.hpp"
#include "rank_queue.hpp"
#include "shingle/backend/backend.hpp"
#include "start_line.hpp"

namespace shingle::cuda {

class CudaArena final : public Arena, public Resident {
 public:
  /// What calls share on a local rank. Its device must be current in all functions.
  struct Calls {
    Calls(LocalRank& of, const CallWords& words);

    LocalRank& local;
    const CallWords& words;
    RankQueue queue;
    TableBlocks tables;
    std::deque<Scratch> workspaces;  ///< by lane
    Stream uploads;                  ///< for tables
    Stream captures;                 ///< calls are captured here, to launch them as graphs
    std::size_t more_graphs = 512;   ///< that may be kept; each takes some device memory
    MemoryPool copies;               ///< for matrices that kernels cannot access as they are
    /// The memory of the last calls' plans, by number of the epoch, to describe a call that failed.
    std::vector<std::shared_ptr<const Memory>> recent;
  };

  /// Collective. `heap` as of ArenaMemory.
  CudaArena(CudaWorld& world, std::int64_t bytes, std::shared_ptr<const CudaHeap> heap);
  /// Waits under the deadline for calls in flight.
  ~CudaArena() override;
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;

  std::int64_t bytes() const override { return memory_.bytes(); }
  void* data(int rank) const override;
  void extend(std::span<void* const> streams) override;
  const ArenaMemory& memory() const { return memory_; }
  Monitor& monitor() { return monitor_; }
  Calls& calls(std::size_t index) { return *calls_[index]; }
  std::size_t local_ranks() const { return calls_.size(); }

  /// As World::prepare().
  void prepare(const Plan& plan);
  bool idle() const noexcept override;
  void drop_graphs() noexcept override {}
  void require_sound() const override { monitor_.require_sound(); }
  std::string describe(const Stall& stall) const override;
  void synchronize() override;

 private:
  CudaWorld& world_;
  ArenaMemory memory_;
  Monitor monitor_;
  Launchers launchers_;
  StartLine start_;
  std::vector<std::unique_ptr<Calls>> calls_;  // by local rank
};

}  // namespace shingle::cuda
