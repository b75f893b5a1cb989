// A plan compiled into an arena, which calls run with any matrices.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "arena.hpp"
#include "call_graphs.hpp"
#include "commands.hpp"
#include "health.hpp"
#include "shingle/backend/backend.hpp"

namespace shingle::cuda {

class CallExecutable final : public Executable {
 public:
  /// Local. Requires arena->prepare() of a plan with the same communicators and number of lanes. The plan has
  /// been found to be served.
  CallExecutable(CudaWorld& world, const Plan& plan, std::shared_ptr<CudaArena> arena, double timeout_us);
  /// Waits under the deadline for calls of this plan in flight.
  ~CallExecutable() override;
  CallExecutable(const CallExecutable&) = delete;
  CallExecutable& operator=(const CallExecutable&) = delete;

  void bind(int rank, Role role, const MatrixMemory& memory) override;
  RunReport run(const RunOptions& options) override;
  void enqueue(const CallTag& tag, std::span<const CallMatrix> matrices,
               std::span<void* const> streams) override;
  void synchronize() override { arena_->synchronize(); }
  bool captured() const override { return captured_; }
  std::int64_t internal_bytes(int rank) const override;
  void poison() override { arena_->memory().poison(); }

 private:
  /// The part of a local rank.
  struct Rank {
    explicit Rank(CudaArena::Calls& of, const RankLaunches& launched)
        : calls(of),
          launches(launched),
          edges(static_cast<std::size_t>(launched.events)),
          tables(&of.tables),
          graphs(of.more_graphs, launched.any_urgent()) {}

    CudaArena::Calls& calls;
    const RankLaunches& launches;
    const std::vector<Event> edges;
    TableMemory tables;
    Commands commands;
    std::array<bool, Shifts::roles> only_copied{};  ///< by role: no kernel accesses the matrix
    std::int32_t counts = 0;                        ///< words of the arena that the plan uses
    std::size_t lanes = 1;                          ///< up to the last with a command
    std::size_t end = 0;                            ///< number of epochs of the arena up to the last call
    bool called = false;
    CallGraphs graphs;
  };
  struct Matrices;
  struct Ready;
  bool is_reached(std::int32_t buffer) const;
  void require_all(std::span<const CallMatrix> matrices) const;
  void require_registered(std::span<const CallMatrix> matrices) const;
  void make(Rank& rank);
  bool must_copy(const Rank& rank, const CallMatrix& matrix) const;
  Matrices fit(const Rank& rank, std::span<const CallMatrix> matrices, cudaStream_t stream) const;
  Outputs outputs_of(const Rank& rank, std::span<const CallMatrix> matrices) const;
  static std::size_t launches_of(const Rank& rank);
  Watch watch(const Rank& rank) const {
    return rank.calls.local.watch(rank.calls.words.epoch, arena_->monitor().of_kernels());
  }
  void make_room(Rank& rank);
  void settle(const Stream& stream);
  const Graph* graph_of(std::size_t index, const CallTag& tag, std::span<const CallMatrix> matrices);
  void enqueue(std::size_t index, const CallTag& tag, const Matrices& fitted, cudaStream_t stream);
  std::string unfit_for_graph() const;

  CudaWorld& world_;
  const std::shared_ptr<CudaArena> arena_;
  const std::shared_ptr<const Memory> memory_;  // has the plan: it may describe a call when this is gone
  const Plan& plan_;
  const LaunchProgram program_;
  std::array<std::int32_t, Shifts::roles> buffers_{};  // by role; -1: none
  std::vector<Kept<Rank>> ranks_;                      // by local rank
  bool tells_ = true;                                  // calls begin and end with kernels
  std::string unfit_for_graph_{};                      // why a graph cannot hold the plan
  bool as_graphs_ = false;                             // calls are launched as graphs
  bool captured_ = false;
};

}  // namespace shingle::cuda
