// Runs an executable on all local ranks: prepares, launches, waits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "connect.hpp"
#include "cuda/memory/memory.hpp"
#include "deadline.hpp"
#include "launchers.hpp"
#include "monitor.hpp"
#include "rank_program.hpp"
#include "start_line.hpp"
#include "world.hpp"

namespace shingle::cuda {

class Runner final : public Resident {
 public:
  /// Makes communicators and memory. Collective. The caller must call connect() next.
  Runner(CudaWorld& world, const Plan& plan);

  /// Makes NCCL connect ranks now; otherwise it would connect them in the middle of a plan. Tries once
  /// whether graphs can run the lanes. Collective.
  void connect();
  /// Makes commands and graphs, if matrices were bound since the last call. Collective. A failure before
  /// capture leaves the world working.
  void prepare(double timeout_us);
  RunReport run(const RunOptions& options);
  void enqueue(std::span<void* const> streams);

  Memory& memory() { return memory_; }
  std::int64_t bytes(int rank) const;

  bool idle() const noexcept override;
  void drop_graphs() noexcept override;
  void require_sound() const override { monitor_.require_sound(); }
  std::string describe(const Stall& stall) const override;
  void synchronize() override;

 private:
  /// How an epoch is submitted to a device.
  enum class By { streams, traced_streams, graph };

  void on_all(std::function<void(std::size_t)> action, double timeout_us);
  void capture();
  void start(By by, const RunOptions& options);
  void meet();
  void launch(std::size_t index, By by, int first, int last, int all);
  bool require_ready(std::span<void* const> streams) const;
  [[noreturn]] void fail(std::exception_ptr error);
  RunReport report(const RunOptions& options, double timeout_us);

  CudaWorld& world_;
  const Plan plan_;
  const LaunchProgram program_;
  Memory memory_;
  Monitor monitor_;
  Launchers launchers_;
  std::vector<std::unique_ptr<RankProgram>> ranks_;
  struct Times {
    Event begin{Event::Timing::on}, end{Event::Timing::on};
  };
  std::vector<Times> times_;
  StartLine start_;
  Connections connections_;
  std::atomic<std::size_t> arrived_{0};  // launching threads that are at meet()
  int enqueued_ = 0;                     // epochs enqueued since the last synchronize() or run()
  bool graphs_ = false;                  // lanes run as branches of a graph
  bool warm_ = false;                    // a run has completed
};

}  // namespace shingle::cuda
