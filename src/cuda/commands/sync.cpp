// Await and Notify steps.
#include <algorithm>

#include "command.hpp"
#include "cuda/kernels/sync.hpp"
#include "cuda/memory/flag_words.hpp"
#include "cuda/raii/check.hpp"

namespace shingle::cuda {
namespace {

class Synchronise final : public Command {
 public:
  Synchronise(std::vector<SyncOp> ops, const Watch& watch) : ops_(std::move(ops)), watch_(watch) {}
  void enqueue(cudaStream_t stream, const Shifts&) override { enqueue(stream); }
  void enqueue(cudaStream_t stream) {
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

void CUDART_CB take_turn(void*) {}

/// Awaits and notifies of a lane in which a host thread stands between kernels and copy engines. The host
/// thread cannot access the counters, so kernels await and set them. A host function runs on the stream
/// before each group of notifies.
class ByHost final : public Command {
 public:
  ByHost(const std::vector<SyncOp>& ops, const Watch& watch) {
    for (auto first = ops.begin(); first != ops.end();) {
      const bool counts = first->kind != SyncKind::await;
      const auto last = std::find_if(
          first, ops.end(), [&](const SyncOp& op) { return (op.kind != SyncKind::await) != counts; });
      turns_.push_back({counts, {std::vector(first, last), watch}});
      first = last;
    }
  }
  void enqueue(cudaStream_t stream, const Shifts&) override {
    for (Turn& turn : turns_) {
      if (turn.counts) check(cudaLaunchHostFunc(stream, take_turn, nullptr), "cudaLaunchHostFunc");
      turn.steps.enqueue(stream);
    }
  }

 private:
  struct Turn {
    bool counts = false;
    Synchronise steps;
  };
  std::vector<Turn> turns_;
};

/// Notifies of a copy lane: copies of 4 bytes that follow the data copies in the same queue.
class CopyFlags final : public Command {
 public:
  struct Flag {
    std::uint32_t* to = nullptr;
    const std::uint32_t* from = nullptr;
  };
  explicit CopyFlags(std::vector<Flag> flags) : flags_(std::move(flags)) {}
  void enqueue(cudaStream_t stream, const Shifts&) override {
    for (const Flag& flag : flags_)
      check(cudaMemcpyAsync(flag.to, flag.from, sizeof *flag.to, cudaMemcpyDefault, stream),
            "cudaMemcpyAsync");
  }

 private:
  std::vector<Flag> flags_;
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

/// The copies that set these counters; none if there are too many different values.
std::vector<CopyFlags::Flag> flags_of(const Context& context, const std::vector<SyncOp>& ops) {
  std::vector<CopyFlags::Flag> flags;
  for (const SyncOp& op : ops) {
    const std::uint32_t* const word = context.flags == nullptr
                                          ? context.table_memory.put(std::vector{op.value})
                                          : context.flags->get(op.value, op.growth);
    if (word == nullptr) return {};
    flags.push_back({op.counter, word});
  }
  return flags;
}

}  // namespace

std::unique_ptr<Command> make_sync_command(const Context& context, const std::vector<Step>& steps) {
  std::vector<SyncOp> ops;
  for (const Step& step : steps) {
    // The begin of a call has made these notifies.
    const auto* const notify = std::get_if<Notify>(&step);
    if (notify == nullptr || !context.memory.counts_begins(notify->counter))
      ops.push_back(op_of(context, step));
  }
  if (ops.empty()) return nullptr;
  if (context.launch.kind == LaunchKind::flags)
    if (auto flags = flags_of(context, ops); !flags.empty())
      return std::make_unique<CopyFlags>(std::move(flags));
  if (context.launch.kind == LaunchKind::host) return std::make_unique<ByHost>(ops, context.watch);
  return std::make_unique<Synchronise>(std::move(ops), context.watch);
}

}  // namespace shingle::cuda
