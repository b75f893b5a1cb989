// The World of GPUs.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "backend/processes.hpp"
#include "backend/watcher.hpp"
#include "cuda/commands/attention.hpp"
#include "cuda/commands/blas.hpp"
#include "cuda/commands/library.hpp"
#include "cuda/nccl/communicators.hpp"
#include "cuda/peer/retired.hpp"
#include "health.hpp"
#include "local_rank.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::cuda {

/// An owner of work on the devices of a world.
class Resident {
 public:
  virtual ~Resident() = default;
  /// Drops graphs with operations of the world's communicators: NCCL releases a communicator only after such
  /// graphs. In a broken world, fail() calls it from a separate thread.
  virtual void drop_graphs() noexcept = 0;
  /// True if none of its work is left on the devices.
  virtual bool idle() const noexcept = 0;
  /// Throws if waits of its kernels were ended, as one has passed its deadline.
  virtual void require_sound() const = 0;
  /// What a rank waited for or did wrong, of a stall that its device recorded. Empty if the wait is none of
  /// its own.
  virtual std::string describe(const Stall& stall) const = 0;
  /// Waits under the deadline until its work that is not replayed by a graph of the user is done.
  virtual void synchronize() = 0;
};

class CudaWorld final : public World {
 public:
  struct Parts {
    int size = 1;
    std::vector<LocalRank> local;
    std::unique_ptr<Processes> processes;
    CudaOptions options;
  };
  /// Makes communicators, or adopts those of the local ranks.
  explicit CudaWorld(Parts parts, std::span<ncclComm* const> adopted = {});
  /// If an exception destroys the world of one process, it fails on all.
  ~CudaWorld() override;

  std::string backend() const override { return "cuda"; }
  int size() const override { return parts_.size; }
  std::vector<int> local_ranks() const override;
  const Machine& machine() const override { return machine_; }
  Capabilities capabilities() const override;
  std::string refuses(const Plan& plan) const override;
  DeviceBuffer allocate(int rank, std::size_t bytes) override;
  void upload(int rank, void* device, const void* host, std::size_t bytes) override;
  void download(int rank, void* host, const void* device, std::size_t bytes) override;
  void fill(int rank, void* device, std::uint8_t value, std::size_t bytes) override;
  std::unique_ptr<Executable> compile(const Plan& plan) override;
  std::shared_ptr<Heap> make_heap(std::int64_t bytes) override;
  std::shared_ptr<Arena> make_arena(std::int64_t bytes, std::shared_ptr<Heap> heap) override;
  void prepare(const Plan& plan, const std::shared_ptr<Arena>& arena) override;
  bool is_prepared(const Plan& plan) const override;
  std::unique_ptr<Executable> compile(const Plan& plan, const std::shared_ptr<Arena>& arena,
                                      double timeout_us) override;
  void barrier() override { barrier(parts_.options.timeout_us); }
  std::vector<double> all_max(std::vector<double> values) override {
    return all_max(std::move(values), parts_.options.timeout_us);
  }

  // For executables:

  /// As the functions above, with the deadline of a run.
  void barrier(double timeout_us);
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  std::vector<LocalRank>& local() { return parts_.local; }
  /// Throws InvalidArgument if the rank is not local.
  LocalRank& local(int rank);
  /// Collective if the communicator is new: all processes ask from compile(), in the same order.
  const Communicator& communicator(const CommKey& key);
  /// The other processes. Call through in_step(), so that a failure breaks the world.
  Processes& processes() { return *parts_.processes; }
  /// Why ranks cannot access each other's memory; empty if they can.
  const std::string& apart() const { return apart_; }
  /// Freed memory that other processes may still have mapped.
  Retired& retired() { return retired_; }
  const CudaOptions& options() const { return parts_.options; }

  /// cuBLASLt's handle of a local rank.
  const BlasHandle& blas(int rank);
  /// cuDNN's handle of a local rank, whose device must be current.
  const DnnHandle& dnn(int rank);
  /// Products of cuBLASLt for calls on a local rank. They outlast the arena, which a context may replace.
  LibraryCache& library(int rank) { return libraries_[rank]; }

  void add(Resident& resident) {
    const Watcher::Hold hold(watcher_);
    residents_.insert(&resident);
  }
  void remove(Resident& resident) {
    const Watcher::Hold hold(watcher_);
    residents_.erase(&resident);
  }

  /// As Resident::describe(), whoever waited; never empty.
  std::string describe(const Stall& stall) const;

  /// By number of lanes: whether that many branches of a graph run concurrently on all devices of the world.
  /// No entry before the trial.
  std::map<std::size_t, bool>& side_by_side() { return side_by_side_; }

  /// Communicators that have connected all their ranks for point-to-point messages.
  std::set<CommKey>& exchanging() { return exchanging_; }

  /// Looks for failures while the program waits by itself. Every call that uses communicators, processes or
  /// residents holds it: such calls look for failures themselves. Launches of a call lift it
  /// (Watcher::Pause), and operations of communicators among them hold it again.
  Watcher& watcher() { return watcher_; }

  Health& health() { return *health_; }
  const std::shared_ptr<Health>& shared_health() const { return health_; }
  /// Throws if the world is broken, a communicator has failed, or another process has failed or is gone. The
  /// one thread that waits for a run calls it repeatedly. Kernels whose wait passed its deadline report
  /// through LocalRank::aborted() instead.
  void watch();
  /// Breaks the world, once: ends the kernels' waits, tells the other processes, aborts the communicators.
  /// For an UnnamedTimeout it first asks the other processes which ranks are missing.
  ///
  /// Returns once the devices are idle. After ten seconds it gives up on them; before that it prints the
  /// reason if it takes longer than usual. Communicators are aborted in the background. Never throws. No
  /// thread may be in an operation of a communicator, except in a hopeless world, whose communicators stay as
  /// they are.
  void fail(std::exception_ptr error) noexcept;
  /// As fail(), then throws the first failure of the world.
  [[noreturn]] void fail_and_throw(std::exception_ptr error) {
    fail(error);
    if (auto first = health_->error()) std::rethrow_exception(first);
    std::rethrow_exception(error);
  }
  /// Runs `action`, which all processes run together. A failure breaks the world.
  template <class Action>
  void in_step(Action action) {
    const Watcher::Hold hold(watcher_);
    health_->require();
    try {
      action();
    } catch (...) {
      fail(std::current_exception());
      std::rethrow_exception(health_->error());
    }
  }

 private:
  std::exception_ptr named(std::exception_ptr error) noexcept;
  bool is_alone() const { return static_cast<int>(parts_.local.size()) == parts_.size; }
  bool release(double timeout_us) noexcept;
  void require_same(const Plan& plan);
  void require_fits(const Plan& plan) const;
  void join_memory();
  void come_to_rest();
  void settle() noexcept;
  void start_watcher();
  void look() const;

  std::shared_ptr<Health> health_ = std::make_shared<Health>();  // memory that users hold keeps it alive
  std::mutex failing_;
  Parts parts_;
  std::unique_ptr<Communicators> communicators_;
  Machine machine_;
  std::string apart_;
  Retired retired_;
  std::set<Resident*> residents_;
  std::map<std::size_t, bool> side_by_side_;
  std::set<CommKey> exchanging_;
  std::map<int, Kept<BlasHandle>> blas_;   // by rank; made on first use
  std::map<int, Kept<DnnHandle>> dnn_;     // by rank, of all local ones; made on first use
  std::map<int, LibraryCache> libraries_;  // by rank; use the handles
  const int exceptions_ = std::uncaught_exceptions();
  mutable Watcher watcher_;
};

}  // namespace shingle::cuda
