// Compiled plans of a CUDA world.
#pragma once

#include <memory>

#include "arena.hpp"
#include "runner.hpp"

namespace shingle::cuda {

/// The Executable that users hold: checks arguments, then calls the runner.
class CudaExecutable final : public Executable {
 public:
  CudaExecutable(CudaWorld& world, const Plan& plan);
  /// Waits under the deadline for epochs in flight.
  ~CudaExecutable() override;
  CudaExecutable(const CudaExecutable&) = delete;
  CudaExecutable& operator=(const CudaExecutable&) = delete;

  void bind(int rank, Role role, const MatrixMemory& memory) override {
    const Watcher::Hold hold(world_.watcher());
    runner_->memory().bind(rank, role, memory);
  }
  RunReport run(const RunOptions& options) override;
  void prepare(double timeout_us) override;
  /// Holds the watcher even while the driver blocks a launch: a failure destroys the graphs that this
  /// launches.
  void enqueue(std::span<void* const> streams) override {
    const Watcher::Hold hold(world_.watcher());
    runner_->enqueue(streams);
  }
  void synchronize() override {
    const Watcher::Hold hold(world_.watcher());
    runner_->synchronize();
  }
  std::int64_t internal_bytes(int rank) const override { return runner_->bytes(rank); }
  void poison() override { runner_->memory().poison(); }

 private:
  CudaWorld& world_;
  Kept<Runner> runner_;
};

/// Compiles a plan for this world's ranks. Collective: all processes pass the same plan. Throws Unsupported
/// if the plan needs something that this world cannot do.
std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan);
/// As above, into an arena. Local. Throws InvalidArgument if the arena is null or was not prepared for the
/// plan's communicators.
std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan, std::shared_ptr<CudaArena> arena,
                                    double timeout_us);

}  // namespace shingle::cuda
