// Attend and AttendBackward steps: one attention of cuDNN for each run of equal parts of sequences.
//
// Every query of a step sees at least one of its keys, so cuDNN never has a row without keys, whose
// log-sum-exp is not finite. Every key of a backward step is seen by a query, so no gradient is left
// unstored.
#include <fmt/format.h>

#include <algorithm>

#include "attention.hpp"
#include "command.hpp"
#include "cuda/runtime/world.hpp"
#include "library.hpp"
#include "lower/attention_parts.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

/// Scores of one backward. A deterministic backward of cuDNN needs 2 bytes of workspace for each.
constexpr std::int64_t most_backward_scores = std::int64_t{1} << 28;

class AttendCommand final : public Command {
 public:
  struct Run {
    std::shared_ptr<Attention> attention;
    AttentionMatrices<Address> at{};  ///< null: there is no such matrix
  };
  /// The attentions run in stream order and share the lane's workspace.
  AttendCommand(std::vector<Run> runs, Scratch& workspace) : runs_(std::move(runs)), workspace_(workspace) {
    std::size_t bytes = 0;
    for (const Run& run : runs_) bytes = std::max(bytes, run.attention->workspace_bytes());
    workspace.reserve(bytes);
  }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    const auto address = [&](const Address& matrix) -> void* { return matrix.in(shifts); };
    for (const Run& run : runs_) run.attention->run(stream, run.at.map(address), workspace_.get());
  }

 private:
  std::vector<Run> runs_;
  const Scratch& workspace_;  // may still grow while other commands are made
};

/// Heads and rows of a step, from the first ones of its slices.
struct Block {
  std::int64_t sequences = 1, kv_heads = 1;
  std::int64_t query = 0, key = 0, kv_head = 0;  ///< the first ones
};

class AttendRuns {
 public:
  /// `slices`: null if there is no such matrix.
  AttendRuns(const Context& context, const AttentionMatrices<const Slice*>& slices)
      : context_(context), attention_(context.plan.problem().attention), slices_(slices) {
    row_ = slices.map([&](const Slice* slice) {
      return slice == nullptr ? 0 : context.memory.row_bytes(slice->buffer) / element_bytes(*slice);
    });
  }

  void add(const AttentionPart& part, bool backward) {
    const std::int64_t kv_heads = slices_.keys->cols / attention_.head_dim;
    const AttentionBatch batch = backward ? attention_batch(part, kv_heads, sharing(), most_backward_scores)
                                          : AttentionBatch{part.sequences, kv_heads};
    for (std::int64_t sequence = 0; sequence < part.sequences; sequence += batch.sequences)
      for (std::int64_t head = 0; head < kv_heads; head += batch.kv_heads)
        add(part, backward,
            {std::min(batch.sequences, part.sequences - sequence), std::min(batch.kv_heads, kv_heads - head),
             part.row + sequence * part.queries, part.key + sequence * part.keys, head});
  }
  std::unique_ptr<Command> command() {
    return std::make_unique<AttendCommand>(std::move(runs_), context_.workspace);
  }

 private:
  void add(const AttentionPart& part, bool backward, const Block& block) {
    const AttentionProblem problem{.type = dtype(*slices_.q),
                                   .backward = backward,
                                   .sequences = block.sequences,
                                   .queries = part.queries,
                                   .keys = part.keys,
                                   .heads = block.kv_heads * sharing(),
                                   .kv_heads = block.kv_heads,
                                   .head_dim = attention_.head_dim,
                                   .causal = part.causal,
                                   .row = row_};
    const std::int64_t head = block.kv_head * sharing(), dim = attention_.head_dim;
    const auto of_queries = [&](const Slice* slice) { return at(slice, block.query, head * dim); };
    const auto of_keys = [&](const Slice* slice) { return at(slice, block.key, block.kv_head * dim); };
    const AttentionMatrices<const Slice*>& s = slices_;
    runs_.push_back({context_.library.get(context_.world.dnn(context_.rank), problem, context_.settle),
                     {of_queries(s.q), of_keys(s.keys), of_keys(s.values), of_queries(s.out),
                      at(s.lse, block.query, head), of_queries(s.grad), of_queries(s.q_grad),
                      of_keys(s.keys_grad), of_keys(s.values_grad)}});
    AttentionMatrices<Address> aligned = runs_.back().at;
    aligned.lse = {};
    aligned.map([&](const Address& matrix) {
      if (reinterpret_cast<std::uintptr_t>(matrix.at) % 16 != 0)
        throw InvalidArgument(
            fmt::format("the matrices of an attention of rank {} must begin at multiples of 16 bytes",
                        context_.rank),
            context_.rank);
      return 0;
    });
  }

  std::int64_t sharing() const { return attention_.heads / attention_.kv_heads; }
  DType dtype(const Slice& slice) const {
    return context_.plan.buffers[static_cast<std::size_t>(slice.buffer)].dtype;
  }
  std::int64_t element_bytes(const Slice& slice) const {
    return static_cast<std::int64_t>(size_bytes(dtype(slice)));
  }
  /// Address of a row and column of a slice; null if there is none.
  Address at(const Slice* slice, std::int64_t row, std::int64_t col) const {
    if (slice == nullptr) return {};
    return context_.memory.at(*slice, context_.parity) + row * context_.memory.row_bytes(slice->buffer) +
           col * element_bytes(*slice);
  }

  const Context& context_;
  const shingle::Attention& attention_;
  AttentionMatrices<const Slice*> slices_;
  AttentionMatrices<std::int64_t> row_{};  // elements
  std::vector<AttendCommand::Run> runs_;
};

template <class Step>
std::vector<AttentionPart> parts_of(const Problem& problem, const Step& step) {
  return attention_parts(problem, {step.first_token, step.first_token + step.grid.rows},
                         {step.first_key, step.first_key + step.keys.rows});
}

/// Throws Unsupported if cuDNN has no attention of this type and these heads.
void require_heads(const Plan& plan, const Slice& q) {
  const DType type = plan.buffers[static_cast<std::size_t>(q.buffer)].dtype;
  const std::int64_t dim = plan.problem().attention.head_dim;
  if (type == DType::f32) throw Unsupported("CUDA: cuDNN has no attention for f32: use bf16 or f16");
  if (dim % 8 != 0 || dim > 256)
    throw Unsupported(
        fmt::format("CUDA: head_dim = {} must be a multiple of 8 up to 256 for cuDNN's attention", dim));
}

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
  require_heads(plan, step.q);
  require_plain(step.grid, step.out, step.gates, step.notify, "attend");
}

void require_served(const Plan& plan, const AttendBackward& step) {
  require_heads(plan, step.q);
  if (!step.gates.empty() || !step.notify.empty())
    throw Unsupported("CUDA: a step 'attend-backward' has no hooks");
  const auto buffer = [&](const Slice& slice) -> const Buffer& {
    return plan.buffers[static_cast<std::size_t>(slice.buffer)];
  };
  for (const Slice* stored : {&step.q_grad, &step.keys_grad, &step.values_grad})
    if (buffer(*stored).dtype != buffer(step.q).dtype)
      throw Unsupported(fmt::format("CUDA: a step 'attend-backward' stores {} in {}; expected {}, as Q",
                                    buffer(*stored).name, name(buffer(*stored).dtype),
                                    name(buffer(step.q).dtype)));
  if (share_keys(parts_of(plan.problem(), step)))
    throw Unsupported(fmt::format(
        "CUDA: the queries of a step 'attend-backward' lie on both sides of its last key, token {}: "
        "make the queries behind it a step of their own",
        step.first_key + step.keys.rows - 1));
}

std::unique_ptr<Command> make_command(const Context& context, const Attend& step) {
  if (step.grid.tiles() == 0) return nullptr;
  require_served(context.plan, step);
  AttendRuns runs(context, {.q = &step.q,
                            .keys = &step.keys,
                            .values = &step.values,
                            .out = &step.out.slice,
                            .lse = step.lse.buffer < 0 ? nullptr : &step.lse});
  for (const AttentionPart& part : parts_of(context.plan.problem(), step)) runs.add(part, false);
  return runs.command();
}

std::unique_ptr<Command> make_command(const Context& context, const AttendBackward& step) {
  if (step.grid.tiles() == 0) return nullptr;
  require_served(context.plan, step);
  AttendRuns runs(context, {.q = &step.q,
                            .keys = &step.keys,
                            .values = &step.values,
                            .out = &step.attended,
                            .lse = &step.lse,
                            .grad = &step.grad,
                            .q_grad = &step.q_grad,
                            .keys_grad = &step.keys_grad,
                            .values_grad = &step.values_grad});
  for (const AttentionPart& part : parts_of(context.plan.problem(), step)) runs.add(part, true);
  return runs.command();
}

}  // namespace shingle::cuda
