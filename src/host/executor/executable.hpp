// A compiled plan: one thread for every lane of every local rank, which runs the lane's steps epoch after
// epoch. run() starts the epochs of all local ranks together. Enqueued epochs start rank by rank, each in the
// rank's stream.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "engine.hpp"
#include "pool.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::host {

class HostExecutable final : public Executable {
 public:
  /// Requires the engine's transport to be set.
  explicit HostExecutable(std::unique_ptr<Engine> engine);
  ~HostExecutable() override;
  HostExecutable(const HostExecutable&) = delete;
  HostExecutable& operator=(const HostExecutable&) = delete;

  void bind(int rank, Role role, const MatrixMemory& memory) override;
  RunReport run(const RunOptions& options) override;
  void prepare(double timeout_us) override;
  void enqueue(std::span<void* const> streams) override;
  void enqueue(const CallTag& tag, std::span<const CallMatrix> matrices,
               std::span<void* const> streams) override;
  void synchronize() override;
  std::int64_t internal_bytes(int rank) const override;
  void poison() override;

 private:
  /// Lanes that start together, and how many of their threads have run on a core since.
  struct StartBarrier {
    std::size_t lanes = 0;
    std::atomic<std::size_t> up{0};
  };
  /// State shared by the lanes of a rank.
  struct Rank {
    int number = 0;
    std::vector<int> cores{};  ///< on which the rank computes; empty: any core
    std::shared_ptr<Pool> pool{};
    std::mutex mutex{};  ///< guards the next three
    std::condition_variable changed{};
    int arrived = 0;
    std::uint64_t joins = 0;
    // Guarded by HostExecutable::mutex_:
    std::uint64_t generation = 0;   ///< counts the runs of the rank
    std::size_t running = 0;        ///< lanes that have not finished the run
    int epochs = 0;                 ///< of the current run
    std::uint32_t first_epoch = 0;  ///< of the current or the next run
    std::shared_ptr<StartBarrier> start{};
  };
  struct LaneThread {
    Rank* rank = nullptr;
    int lane = 0;
    std::vector<Span> spans;
    double begin_us = 0, end_us = 0;
    std::atomic<double> in_hook_since_us{-1};  ///< start of the current hook; -1: not in a hook
    std::thread thread;
  };

  void stop();
  void serve(LaneThread& lane);
  static void line_up(StartBarrier& start, LaneKind kind, const Health& health);
  void run_epochs(LaneThread& lane, Worker& worker, std::uint32_t first, int epochs);
  void run_steps(LaneThread& lane, Worker& worker, std::uint32_t epoch);
  void join_lanes(Rank& rank, int lanes);
  /// Starts epochs of these ranks, and waits for them. Requires that nothing of the ranks runs.
  void run_ranks(std::span<Rank* const> ranks, int epochs);
  void enqueue_epoch(std::span<const CallMatrix> matrices, std::span<void* const> streams,
                     const std::optional<CallTag>& tag);
  void call(Rank& rank, const std::optional<CallTag>& tag);
  void watch_hooks();
  RunReport report();

  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<LaneThread>> lanes_;

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::uint32_t next_epoch_;  // the first that is neither run nor enqueued
  bool prepared_ = false;
  bool quit_ = false;
};

}  // namespace shingle::host
