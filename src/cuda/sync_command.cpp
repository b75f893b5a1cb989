// Steps that wait and count.
#include "cuda/command.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/raii/check.hpp"

namespace shingle::cuda {
namespace {

class Synchronise final : public Command {
 public:
  Synchronise(std::vector<SyncOp> ops, const Watch& watch) : ops_(std::move(ops)), watch_(watch) {}
  void enqueue(cudaStream_t stream) override {
    for (std::size_t first = 0; first < ops_.size(); first += most_sync_ops) {
      const auto count = std::min<std::size_t>(ops_.size() - first, most_sync_ops);
      check(launch_sync(ops_.data() + first, static_cast<int>(count), watch_, stream),
            "launch a sync kernel");
    }
  }

 private:
  std::vector<SyncOp> ops_;
  Watch watch_;
};

SyncOp op_of(const Context& context, const Step& step) {
  if (const auto* await = std::get_if<Await>(&step))
    return {SyncKind::await, context.memory.counter(await->counter), await->target,
            context.memory.growth(await->counter), false};
  const auto& notify = std::get<Notify>(step);
  const bool set =
      context.plan.counters[static_cast<std::size_t>(notify.counter.counter)].kind == CounterKind::set;
  return {set ? SyncKind::set : SyncKind::add, context.memory.counter(notify.counter), notify.value,
          context.memory.growth(notify.counter), notify.counter.rank != context.rank};
}

}  // namespace

std::unique_ptr<Command> make_sync_command(const Context& context, const std::vector<Step>& steps) {
  std::vector<SyncOp> ops;
  for (const Step& step : steps) ops.push_back(op_of(context, step));
  return std::make_unique<Synchronise>(std::move(ops), context.watch);
}

}  // namespace shingle::cuda
