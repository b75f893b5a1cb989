// MergeSlots steps: one kernel.
#include "cuda/kernels/merge_slots.hpp"

#include "command.hpp"
#include "cuda/raii/check.hpp"

namespace shingle::cuda {
namespace {

/// All matrices are internal, so calls do not move them.
class MergeSlotsCommand final : public Command {
 public:
  explicit MergeSlotsCommand(const MergeSlotsArgs& args) : args_(args) {}
  void enqueue(cudaStream_t stream, const Shifts&) override {
    check(launch_merge_slots(args_, stream), "launch the merge of slots");
  }

 private:
  MergeSlotsArgs args_;
};

}  // namespace

std::unique_ptr<Command> make_command(const Context& context, const MergeSlots& step) {
  const auto at = [&](const Slice& slice) {
    return slice.buffer < 0 ? nullptr
                            : reinterpret_cast<std::int32_t*>(context.memory.at(slice, context.parity).at);
  };
  MergeSlotsArgs args;
  args.counts = at(step.counts);
  args.slot_of = at(step.slot_of);
  args.ranks = static_cast<std::int32_t>(step.counts.rows);
  args.tokens = static_cast<std::int32_t>(step.slot_of.rows / step.counts.rows);
  args.choices = static_cast<std::int32_t>(step.slot_of.cols);
  args.experts = static_cast<std::int32_t>(step.counts.cols);
  args.capacity = step.capacity;
  args.live = at(step.live);
  args.merged_of = at(step.merged_of);
  args.token_of = at(step.token_of);
  args.row_of = at(step.row_of);
  args.slot_at = at(step.slot_at);
  return std::make_unique<MergeSlotsCommand>(args);
}

}  // namespace shingle::cuda
