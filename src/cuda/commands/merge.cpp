// Merge steps: partial attentions by one kernel.
#include <fmt/format.h>

#include "command.hpp"
#include "cuda/kernels/merge.hpp"
#include "cuda/raii/check.hpp"
#include "elements.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

class MergeCommand final : public Command {
 public:
  /// Buffers of parts are internal, so only the results may move from call to call. `lse`: null if it is not
  /// stored.
  MergeCommand(const MergeArgs& args, Address to, Address lse) : args_(args), to_(to), lse_(lse) {}
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    args_.to = to_.in(shifts);
    args_.lse = reinterpret_cast<float*>(lse_.in(shifts));
    check(launch_merge(args_, stream), "launch a merge");
  }

 private:
  MergeArgs args_;
  Address to_, lse_;
};

}  // namespace

void require_served(const Plan& plan, const Merge& step) {
  const auto buffer = [&](const Slice& slice) -> const Buffer& {
    return plan.buffers[static_cast<std::size_t>(slice.buffer)];
  };
  require_plain(step.grid, step.to, step.gates, step.notify, "merge");
  const std::int64_t dim = plan.problem().attention.head_dim;
  if (dim % 8 != 0 || dim > 256)
    throw Unsupported(
        fmt::format("CUDA: head_dim = {} must be a multiple of 8 up to 256 to merge parts", dim));
  if (step.parts.size() > most_merged_parts)
    throw Unsupported(
        fmt::format("CUDA: a merge of {} parts; at most {}", step.parts.size(), most_merged_parts));
  const auto served = [&](const Slice& slice) {
    const DType type = buffer(slice).dtype;
    if (type != plan.dtype() && type != DType::f32)
      throw Unsupported(fmt::format("CUDA: a merge of {} in {}; expected {} or f32", buffer(slice).name,
                                    name(type), name(plan.dtype())));
  };
  for (const Merge::Part& part : step.parts) {
    served(part.value);
    if (buffer(part.value).role != Role::internal || buffer(part.lse).role != Role::internal)
      throw Unsupported("CUDA: parts of an attention lie in internal buffers");
  }
  served(step.to.slice);
}

std::unique_ptr<Command> make_command(const Context& context, const Merge& step) {
  if (step.grid.tiles() == 0) return nullptr;
  require_served(context.plan, step);
  const auto at = [&](const Slice& slice) { return context.memory.at(slice, context.parity); };
  const auto type_of = [&](const Slice& slice) {
    return context.plan.buffers[static_cast<std::size_t>(slice.buffer)].dtype;
  };
  const auto row_of = [&](const Slice& slice) {
    return context.memory.row_bytes(slice.buffer) / static_cast<std::int64_t>(size_bytes(type_of(slice)));
  };
  const auto is_wide = [&](const Slice& slice) { return type_of(slice) == DType::f32; };
  MergeArgs args;
  args.type = element(context.plan.dtype());
  args.rows = step.grid.rows;
  args.head_dim = static_cast<std::int32_t>(context.plan.problem().attention.head_dim);
  args.heads = static_cast<std::int32_t>(step.grid.cols / args.head_dim);
  for (const Merge::Part& part : step.parts) {
    const float* const lse = reinterpret_cast<const float*>(at(part.lse).at);
    args.parts[args.part_count++] = {at(part.value).at,  lse,      row_of(part.value),
                                     row_of(part.lse),   part.row, part.value.rows,
                                     is_wide(part.value)};
  }
  args.to_row = row_of(step.to.slice);
  args.to_wide = is_wide(step.to.slice);
  const bool stores_lse = step.lse.buffer >= 0;
  if (stores_lse) args.lse_row = row_of(step.lse);
  return std::make_unique<MergeCommand>(args, at(step.to.slice), stores_lse ? at(step.lse) : Address{});
}

}  // namespace shingle::cuda
