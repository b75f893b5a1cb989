// Executes the steps of a plan, one by one, on behalf of a lane.
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

  /// Throws what the step throws; Timeout or Stopped from its waits.
  void run(const Caller& caller);
  /// Waits for what the lane's steps have set going.
  void finish();

  void operator()(const Gemm& step);
  void operator()(const Elementwise& step);
  void operator()(const Attend& step);
  void operator()(const Await& step);
  void operator()(const Notify& step);
  void operator()(const Fill& step);
  void operator()(const Collective& step);
  void operator()(const Exchange& step);
  void operator()(const Copy& step);
  void operator()(const Broadcast& step);
  void operator()(const Swap& step);

 private:
  void run_tiled(TiledStep step, const Resources& resources);
  /// Whether a placement reaches into other ranks' memory.
  bool leaves(const Placement& at) const;
  /// A copy lane's commands are created by a launching thread: waits until the engine has those of the batch
  /// that begins here.
  void submit();
  /// The host writes a place that engines poll: its launching thread does so in turn with its other work.
  void signal(const CounterRef& counter);
  /// Waits until `written` bytes are copied, `crossed` of them to or from another rank over this rank's link;
  /// on a copy lane that is left to the notify behind, and a command may take so much `beyond` a copy.
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
  CopyQueue queue_;                ///< of a copy lane
  Clock::time_point delivered_{};  ///< when all that the lane's tiled steps stored elsewhere is there
};

}  // namespace shingle::host
