// AssignSlots steps: one kernel.
#include "cuda/kernels/assign_slots.hpp"

#include <fmt/format.h>

#include "command.hpp"
#include "cuda/raii/check.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

class AssignSlotsCommand final : public Command {
 public:
  /// Indices and counts are internal, so only the ids and the output may move from call to call.
  AssignSlotsCommand(const AssignSlotsArgs& args, Address ids, Address dropped)
      : args_(args), ids_(ids), dropped_(dropped) {}
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    AssignSlotsArgs args = args_;
    args.ids = reinterpret_cast<const std::int32_t*>(ids_.in(shifts));
    args.dropped = reinterpret_cast<std::int32_t*>(dropped_.in(shifts));
    if (shifts.tokens >= 0) args.tokens = shifts.tokens;
    check(launch_assign_slots(args, stream), "launch the assignment of slots");
  }

 private:
  AssignSlotsArgs args_;
  Address ids_, dropped_;
};

}  // namespace

void require_served(const Plan&, const AssignSlots& step) {
  if (const std::int64_t experts = step.counts.rows * step.counts.cols; experts > most_experts)
    throw Unsupported(fmt::format("CUDA: {} experts with a capacity; at most {}", experts, most_experts));
  if (step.ids.cols > most_choices)
    throw Unsupported(
        fmt::format("CUDA: topk = {} of experts with a capacity; at most {}", step.ids.cols, most_choices));
}

std::unique_ptr<Command> make_command(const Context& context, const AssignSlots& step) {
  require_served(context.plan, step);
  const auto at = [&](const Slice& slice) {
    return reinterpret_cast<std::int32_t*>(context.memory.at(slice, context.parity).at);
  };
  AssignSlotsArgs args;
  args.tokens = args.most_tokens = static_cast<std::int32_t>(step.ids.rows);
  args.choices = static_cast<std::int32_t>(step.ids.cols);
  args.experts = static_cast<std::int32_t>(step.counts.rows * step.counts.cols);
  args.capacity = static_cast<std::int32_t>(step.row_of.rows / args.experts);
  args.row_of = at(step.row_of);
  args.slot_of = at(step.slot_of);
  args.counts = at(step.counts);
  return std::make_unique<AssignSlotsCommand>(args, context.memory.at(step.ids, context.parity),
                                              context.memory.at(step.dropped, context.parity));
}

}  // namespace shingle::cuda
