// Plans at work on a CUDA world.
#pragma once

#include <memory>
#include <optional>

#include "cuda/launchers.hpp"
#include "cuda/memory.hpp"
#include "cuda/rank_program.hpp"
#include "cuda/start_line.hpp"
#include "cuda/world.hpp"

namespace shingle::cuda {

class CudaExecutable final : public Executable, public GraphOwner {
 public:
  CudaExecutable(CudaWorld& world, const Plan& plan);
  ~CudaExecutable() override { world_.remove(*this); }
  CudaExecutable(const CudaExecutable&) = delete;
  CudaExecutable& operator=(const CudaExecutable&) = delete;

  void bind(int rank, Role role, void* memory) override { memory_.bind(rank, role, memory); }
  RunReport run(const RunOptions& options) override;
  std::int64_t internal_bytes(int rank) const override;
  void poison() override { memory_.poison(); }
  void drop_graphs() noexcept override;

  /// One epoch of a local rank behind what is in the caller's stream: asynchronous, also within somebody
  /// else's capture once a run() has gone before; what was captured so is void once a matrix is bound anew,
  /// and goes before the world. All ranks have to do the same. Throws Timeout where an earlier wait has
  /// passed its deadline: the outputs since are void.
  void enqueue(int rank, cudaStream_t stream);

 private:
  /// How a rank's epoch gets to its device.
  enum class By { streams, traced_streams, graph };

  void prepare(std::size_t index, const RunOptions& options);
  bool stale();
  By try_graphs(const RunOptions& options);
  void start(By by, const RunOptions& options);
  void launch(std::size_t index, By by, const RunOptions& options);
  void wait(const RunOptions& options);
  bool drained(double timeout_us) const;
  [[noreturn]] void fail(std::exception_ptr error);
  std::string diagnosis();
  RunReport report(const RunOptions& options);

  CudaWorld& world_;
  Plan plan_;
  Memory memory_;
  Launchers launchers_;
  std::vector<std::unique_ptr<RankProgram>> ranks_;
  struct Times {
    Event begin{Event::Timing::on}, end{Event::Timing::on};
  };
  std::vector<Times> times_;
  StartLine start_;
  bool connected_ = false;     // a run has gone before: kernels are loaded and ranks connected
  std::optional<By> replays_;  // how later runs go, once that is known
};

/// The plan is for this world's ranks, and the same on all processes. Collective. Throws Unsupported where
/// the plan needs what the world cannot do.
std::unique_ptr<Executable> compile(CudaWorld& world, const Plan& plan);

}  // namespace shingle::cuda
