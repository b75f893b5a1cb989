// Attend steps: one attention of cuDNN for each run of equal parts of sequences.
#include <fmt/format.h>

#include <algorithm>

#include "attention.hpp"
#include "command.hpp"
#include "cuda/runtime/world.hpp"
#include "library.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

/// Queries of a step that one attention computes, and the keys that they see.
struct Part {
  std::int64_t row = 0;                ///< of the step's first query
  std::int64_t key = 0;                ///< token
  std::int64_t queries = 0, keys = 0;  ///< of each sequence
  std::int64_t sequences = 1;
};

/// The parts of a step by sequence. Whole sequences of one length are one part.
std::vector<Part> parts_of(const Problem& problem, const Attend& step) {
  std::vector<Part> parts;
  for (std::int64_t row = 0; row < step.grid.rows;) {
    const std::int64_t token = step.first_token + row;
    const std::int64_t rows = std::min(problem.sequence_of(token).end - token, step.grid.rows - row);
    const TokenRange seen = problem.seen_by(token, rows);
    const Part part{row, seen.first, rows, seen.end - seen.first};
    Part* const last = parts.empty() ? nullptr : &parts.back();
    const auto whole = [](const Part& one) { return one.queries == one.keys; };
    if (last != nullptr && whole(*last) && whole(part) && last->queries == part.queries)
      ++last->sequences;
    else
      parts.push_back(part);
    row += rows;
  }
  return parts;
}

class AttendCommand final : public Command {
 public:
  struct Run {
    std::shared_ptr<Attention> attention;
    Address q, keys, values, out;
  };
  /// The attentions run in stream order and share the lane's workspace.
  AttendCommand(std::vector<Run> runs, Scratch& workspace) : runs_(std::move(runs)), workspace_(workspace) {
    for (const Run& run : runs_) workspace.reserve(run.attention->workspace_bytes());
  }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    for (const Run& run : runs_)
      run.attention->run(stream,
                         {run.q.in(shifts), run.keys.in(shifts), run.values.in(shifts), run.out.in(shifts)},
                         workspace_.get());
  }

 private:
  std::vector<Run> runs_;
  const Scratch& workspace_;  // may still grow while other commands are made
};

}  // namespace

void require_served(const Plan& plan, const Attend& step) {
  const DType type = plan.buffers[static_cast<std::size_t>(step.q.buffer)].dtype;
  const std::int64_t dim = plan.problem().attention.head_dim;
  if (type == DType::f32) throw Unsupported("CUDA: cuDNN has no attention for f32: use bf16 or f16");
  if (dim % 8 != 0 || dim > 256)
    throw Unsupported(
        fmt::format("CUDA: head_dim = {} must be a multiple of 8 up to 256 for cuDNN's attention", dim));
  const auto* const form = std::get_if<placement::Matrix>(&step.out.form);
  const RowRun run = form != nullptr ? form->rows.run_at(0, step.grid.rows) : RowRun{};
  if (!step.gates.empty() || !step.notify.empty() || form == nullptr || !replicas(step.out).empty() ||
      run.matrix_row != 0 || run.rows < step.grid.rows)
    throw Unsupported("CUDA: a step 'attend' has no hooks, and stores consecutive rows of one slice");
}

std::unique_ptr<Command> make_command(const Context& context, const Attend& step) {
  if (step.grid.tiles() == 0) return nullptr;
  require_served(context.plan, step);
  const Problem& problem = context.plan.problem();
  const std::int64_t dim = problem.attention.head_dim;
  const DType type = context.plan.buffers[static_cast<std::size_t>(step.q.buffer)].dtype;
  const auto element = static_cast<std::int64_t>(size_bytes(type));
  const auto row_bytes = [&](const Slice& slice) { return context.memory.row_bytes(slice.buffer); };
  const auto at = [&](const Slice& slice) { return context.memory.at(slice, context.parity); };
  const Slice& to = step.out.slice;
  std::vector<AttendCommand::Run> runs;
  for (const Part& part : parts_of(problem, step)) {
    const AttentionProblem attention{
        .type = type,
        .sequences = part.sequences,
        .queries = part.queries,
        .keys = part.keys,
        .heads = step.grid.cols / dim,
        .kv_heads = step.keys.cols / dim,
        .head_dim = dim,
        .causal = problem.attention.causal,
        .q_row = row_bytes(step.q) / element,
        .keys_row = row_bytes(step.keys) / element,
        .values_row = row_bytes(step.values) / element,
        .out_row = row_bytes(to) / element,
    };
    const AttendCommand::Run run{
        context.library.get(context.world.dnn(context.rank), attention, context.settle),
        at(step.q) + part.row * row_bytes(step.q), at(step.keys) + part.key * row_bytes(step.keys),
        at(step.values) + part.key * row_bytes(step.values), at(to) + part.row * row_bytes(to)};
    for (const Address& operand : {run.q, run.keys, run.values, run.out})
      if (reinterpret_cast<std::uintptr_t>(operand.at) % 16 != 0)
        throw InvalidArgument(
            fmt::format("Q, K, V and the result of rank {} must begin at multiples of 16 bytes",
                        context.rank),
            context.rank);
    runs.push_back(run);
  }
  return std::make_unique<AttendCommand>(std::move(runs), context.workspace);
}

}  // namespace shingle::cuda
