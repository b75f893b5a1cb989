// Attend steps: one attention of cuDNN for each run of equal parts of sequences.
//
// Every query of a step sees at least one of its keys, so cuDNN never has a row without keys, whose
// log-sum-exp is not finite.
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
  bool causal = false;                 ///< the last query sees all keys, the one before all but the last, …
  std::int64_t sequences = 1;
};

/// The part of the queries from `token` on: those of one sequence, at most `rows`. In a causal attention the
/// queries behind the last key see all keys, and are a part of their own.
Part part_at(const Problem& problem, const Attend& step, std::int64_t token, std::int64_t rows) {
  const TokenRange keys{step.first_key, step.first_key + step.keys.rows};
  rows = std::min(rows, problem.sequence_of(token).end - token);
  if (problem.attention.causal && token + 1 < keys.end) rows = std::min(rows, keys.end - token);
  const TokenRange seen = common(problem.seen_by(token, rows), keys);
  return {token - step.first_token, seen.first, rows, seen.count(),
          problem.attention.causal && rows > 1 && seen.end > token + 1};
}

/// The parts of a step. Whole sequences of one length are one part.
std::vector<Part> parts_of(const Problem& problem, const Attend& step) {
  std::vector<Part> parts;
  for (std::int64_t row = 0; row < step.grid.rows;) {
    const Part part = part_at(problem, step, step.first_token + row, step.grid.rows - row);
    Part* const last = parts.empty() ? nullptr : &parts.back();
    const auto whole = [&](const Part& one) {
      return one.queries == one.keys && one.key == step.first_token + one.row;
    };
    if (last != nullptr && whole(*last) && whole(part) && last->queries == part.queries)
      ++last->sequences;
    else
      parts.push_back(part);
    row += part.queries;
  }
  return parts;
}

class AttendCommand final : public Command {
 public:
  struct Run {
    std::shared_ptr<Attention> attention;
    Address q, keys, values, out, lse;  ///< `lse`: null if it is not stored
  };
  /// The attentions run in stream order and share the lane's workspace.
  AttendCommand(std::vector<Run> runs, Scratch& workspace) : runs_(std::move(runs)), workspace_(workspace) {
    for (const Run& run : runs_) workspace.reserve(run.attention->workspace_bytes());
  }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    for (const Run& run : runs_)
      run.attention->run(stream,
                         {run.q.in(shifts), run.keys.in(shifts), run.values.in(shifts), run.out.in(shifts),
                          run.lse.in(shifts)},
                         workspace_.get());
  }

 private:
  std::vector<Run> runs_;
  const Scratch& workspace_;  // may still grow while other commands are made
};

}  // namespace

void require_plain(const TileGrid& grid, const Placement& to, const std::vector<TileGate>& gates,
                   const std::vector<TileNotify>& notify, std::string_view step) {
  const auto* const form = std::get_if<placement::Matrix>(&to.form);
  const RowRun run = form != nullptr ? form->rows.run_at(0, grid.rows) : RowRun{};
  if (!gates.empty() || !notify.empty() || form == nullptr || !replicas(to).empty() || run.matrix_row != 0 ||
      run.rows < grid.rows)
    throw Unsupported(
        fmt::format("CUDA: a step '{}' has no hooks, and stores consecutive rows of one slice", step));
}

void require_served(const Plan& plan, const Attend& step) {
  const DType type = plan.buffers[static_cast<std::size_t>(step.q.buffer)].dtype;
  const std::int64_t dim = plan.problem().attention.head_dim;
  if (type == DType::f32) throw Unsupported("CUDA: cuDNN has no attention for f32: use bf16 or f16");
  if (dim % 8 != 0 || dim > 256)
    throw Unsupported(
        fmt::format("CUDA: head_dim = {} must be a multiple of 8 up to 256 for cuDNN's attention", dim));
  require_plain(step.grid, step.out, step.gates, step.notify, "attend");
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
        .causal = part.causal,
        .stores_lse = step.lse.buffer >= 0,
        .q_row = row_bytes(step.q) / element,
        .keys_row = row_bytes(step.keys) / element,
        .values_row = row_bytes(step.values) / element,
        .out_row = row_bytes(to) / element,
        .lse_row = step.lse.buffer < 0 ? 0 : row_bytes(step.lse) / std::int64_t{sizeof(float)},
    };
    const std::int64_t key = part.key - step.first_key;
    const AttendCommand::Run run{
        context.library.get(context.world.dnn(context.rank), attention, context.settle),
        at(step.q) + part.row * row_bytes(step.q),
        at(step.keys) + key * row_bytes(step.keys),
        at(step.values) + key * row_bytes(step.values),
        at(to) + part.row * row_bytes(to),
        step.lse.buffer < 0 ? Address{} : at(step.lse) + part.row * row_bytes(step.lse)};
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
