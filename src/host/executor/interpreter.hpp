// Executes the steps of a lane, one by one.
#pragma once

#include <vector>

#include "engine.hpp"
#include "pool.hpp"
#include "tiled.hpp"

namespace shingle::host {

class Interpreter {
 public:
  Interpreter(Engine& engine, Pool& pool, Worker& worker, std::vector<Span>& spans)
      : engine_(engine),
        pool_(pool),
        worker_(worker),
        spans_(spans),
        queue_(engine.world->launchers.phases()) {}

  /// Runs the caller's step. Throws what the step throws; its waits throw Timeout or Stopped.
  void run(const Caller& caller);
  /// Waits for all transfers that the lane's steps have started.
  void finish();

  void operator()(const Gemm& step);
  void operator()(const Elementwise& step);
  void operator()(const Attend& step);
  void operator()(const Merge& step);
  void operator()(const AttendBackward& step);
  void operator()(const Await& step);
  void operator()(const Notify& step);
  void operator()(const Fill& step);
  void operator()(const AssignSlots& step);
  void operator()(const MergeSlots& step);
  void operator()(const Collective& step);
  void operator()(const Exchange& step);
  void operator()(const Copy& step);
  void operator()(const Broadcast& step);
  void operator()(const Swap& step);

 private:
  void run_tiled(TiledStep step, const Resources& resources);
  /// True if a placement reaches into other ranks' memory.
  bool leaves(const Placement& at) const;
  /// A launching thread creates a copy lane's commands. Waits until the engine has the commands of the batch
  /// that begins at this step.
  void submit();
  /// Models the host's write of a flag that engines poll. The flag's launching thread writes it in turn with
  /// its other work.
  void signal(const CounterRef& counter);
  /// Waits until `written` bytes are copied. `crossed` of them go to or from another rank over this rank's
  /// link. A copy lane does not wait here but at its next notify, and a command may take `beyond_us` beyond a
  /// copy.
  void pace(std::int64_t written, std::int64_t crossed, double beyond_us = 0);
  const EnginePhases& phases() const { return engine_.world->launchers.phases(); }
  View view(const Slice& slice) const { return engine_.memory.view(slice, caller_.epoch); }
  std::int64_t crossing(const Slice& slice) const;

  Engine& engine_;
  Pool& pool_;
  Worker& worker_;
  std::vector<Span>& spans_;
  Caller caller_;
  const Lane* lane_ = nullptr;
  CopyQueue queue_;                ///< used by copy lanes only
  Clock::time_point delivered_{};  ///< when all remote stores of the lane's tiled steps have arrived
};

}  // namespace shingle::host
