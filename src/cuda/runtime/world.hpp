// A world of GPUs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "backend/processes.hpp"
#include "cuda/commands/blas.hpp"
#include "cuda/nccl/communicators.hpp"
#include "cuda/peer/retired.hpp"
#include "health.hpp"
#include "local_rank.hpp"
#include "shingle/backend/backend.hpp"
#include "shingle/cuda/cuda.hpp"

namespace shingle::cuda {

/// Who has work on the devices of a world.
class Resident {
 public:
  virtual ~Resident() = default;
  /// Drops graphs with operations of the world's communicators, which are not released before the graphs are.
  /// Once the world is broken, from a thread of its own.
  virtual void drop_graphs() noexcept = 0;
  /// Whether none of its work is left there.
  virtual bool idle() const noexcept = 0;
};

class CudaWorld final : public World {
 public:
  struct Parts {
    int size = 1;
    std::vector<LocalRank> local;
    std::unique_ptr<Processes> processes;
    CudaOptions options;
  };
  /// Makes its own communicators, or adopts those of the local ranks.
  explicit CudaWorld(Parts parts, std::span<ncclComm* const> adopted = {});
  ~CudaWorld() override;

  std::string backend() const override { return "cuda"; }
  int size() const override { return parts_.size; }
  std::vector<int> local_ranks() const override;
  const Machine& machine() const override { return machine_; }
  Capabilities capabilities() const override;
  DeviceBuffer allocate(int rank, std::size_t bytes) override;
  void upload(int rank, void* device, const void* host, std::size_t bytes) override;
  void download(int rank, void* host, const void* device, std::size_t bytes) override;
  void fill(int rank, void* device, std::uint8_t value, std::size_t bytes) override;
  std::unique_ptr<Executable> compile(const Plan& plan) override;
  void barrier() override { barrier(parts_.options.timeout_us); }
  std::vector<double> all_max(std::vector<double> values) override {
    return all_max(std::move(values), parts_.options.timeout_us);
  }

  // For executables.

  /// The same within a run, whose deadline is its own.
  void barrier(double timeout_us);
  std::vector<double> all_max(std::vector<double> values, double timeout_us);
  std::vector<LocalRank>& local() { return parts_.local; }
  /// Throws InvalidArgument where the rank is not local.
  LocalRank& local(int rank);
  /// Collective over the world where it is new: from compile(), in the same order on all processes.
  const Communicator& communicator(const CommKey& key);
  /// The other processes. Calls go through in_step(), so that a failure breaks the world.
  Processes& processes() { return *parts_.processes; }
  /// Why ranks do not reach each other's memory; empty: they do.
  const std::string& apart() const { return apart_; }
  /// Memory that was shared with other processes.
  Retired& retired() { return retired_; }
  const CudaOptions& options() const { return parts_.options; }

  /// The library's handle of a local rank.
  const BlasHandle& blas(int rank);

  void add(Resident& resident) { residents_.insert(&resident); }
  void remove(Resident& resident) { residents_.erase(&resident); }

  /// By the number of lanes: whether they run side by side as branches of a graph on all devices of the
  /// world, once that is known.
  std::map<std::size_t, bool>& side_by_side() { return side_by_side_; }

  Health& health() { return *health_; }
  const std::shared_ptr<Health>& shared_health() const { return health_; }
  /// Throws where the world is broken, a communicator has failed, or another process has failed or is gone.
  /// For the one thread that waits for a run to end, again and again. Kernels whose wait passed its deadline
  /// say so by LocalRank::aborted().
  void watch();
  /// Breaks the world, once: kernels' waits end, the other processes are told, communicators are aborted.
  /// Asks the other processes first whom an UnnamedTimeout waits for. Returns once communicators are aborted
  /// and the devices have nothing left to do, or after ten seconds gives up on them; if that takes long, the
  /// reason is printed meanwhile. Never throws. No thread may be in an operation of a communicator, but in a
  /// hopeless world, whose communicators stay as they are.
  void fail(std::exception_ptr error) noexcept;
  /// Runs `action`, which all processes run together; a failure breaks the world.
  template <class Action>
  void in_step(Action action) {
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
  void join_memory();
  void settle() noexcept;

  std::shared_ptr<Health> health_ = std::make_shared<Health>();  // outlived by memory that users hold
  std::mutex failing_;
  Parts parts_;
  std::unique_ptr<Communicators> communicators_;
  Machine machine_;
  std::string apart_;
  Retired retired_;
  std::set<Resident*> residents_;
  std::map<std::size_t, bool> side_by_side_;
  std::map<int, Kept<BlasHandle>> blas_;  // by rank; made when first asked for
};

}  // namespace shingle::cuda
