// A plan at work: for every lane of every local rank a thread, which runs the lane's steps epoch after epoch.
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
  /// The engine's transport is set.
  explicit HostExecutable(std::unique_ptr<Engine> engine);
  ~HostExecutable() override;
  HostExecutable(const HostExecutable&) = delete;
  HostExecutable& operator=(const HostExecutable&) = delete;

  void bind(int rank, Role role, void* memory) override;
  RunReport run(const RunOptions& options) override;
  std::int64_t internal_bytes(int rank) const override;
  void poison() override;

 private:
  /// What the lanes of a rank share.
  struct Rank {
    Rank(int rank_number, int helpers, std::vector<int> own_cores, Health& health)
        : number(rank_number), cores(std::move(own_cores)), pool(helpers, cores, health) {}
    int number;
    std::vector<int> cores;  ///< on which it computes; none: on any
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
    std::atomic<double> in_hook_since_us{-1};  ///< -1: not in a hook
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
  std::uint64_t generation_ = 0;    // of runs
  std::size_t running_ = 0;         // lanes
  int epochs_ = 0;                  // of the current run
  std::atomic<std::size_t> up_{0};  // lanes that a core runs since it began
  bool quit_ = false;
};

}  // namespace shingle::host
