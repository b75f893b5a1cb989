// A compiled plan: one thread for every lane of every local rank, which runs the lane's steps epoch after
// epoch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
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

  void bind(int rank, Role role, void* memory) override;
  RunReport run(const RunOptions& options) override;
  std::int64_t internal_bytes(int rank) const override;
  void poison() override;

 private:
  /// State shared by the lanes of a rank.
  struct Rank {
    Rank(int rank_number, int helpers, std::vector<int> own_cores, Health& health)
        : number(rank_number), cores(std::move(own_cores)), pool(helpers, cores, health) {}
    int number;
    std::vector<int> cores;  ///< on which the rank computes; empty: any core
    Pool pool;
    std::mutex mutex;
    std::condition_variable changed;
    int arrived = 0;
    std::uint64_t joins = 0;
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
  void start(LaneKind kind);
  void run_epochs(LaneThread& lane, Worker& worker);
  void run_steps(LaneThread& lane, Worker& worker, std::uint32_t epoch);
  void join_lanes(Rank& rank, int lanes);
  void wait_for_lanes(std::unique_lock<std::mutex>& lock);
  void watch_hooks();
  RunReport report();

  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<LaneThread>> lanes_;

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::uint64_t generation_ = 0;    // counts runs
  std::size_t running_ = 0;         // lanes that have not finished the run
  int epochs_ = 0;                  // of the current run
  std::atomic<std::size_t> up_{0};  // lanes whose thread has run on a core since the run began
  bool quit_ = false;
};

}  // namespace shingle::host
