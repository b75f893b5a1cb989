// Gemm steps without hooks: one cuBLASLt product for each contiguous run of rows.
#include <fmt/format.h>

#include "command.hpp"
#include "cuda/raii/check.hpp"
#include "cuda/raii/stream.hpp"
#include "cuda/runtime/world.hpp"
#include "library.hpp"
#include "shingle/base/error.hpp"

namespace shingle::cuda {
namespace {

class LibraryCommand final : public Command {
 public:
  struct Part {
    std::shared_ptr<LibraryGemm> product;
    Address a, b, c, bias;
  };
  /// The products run in stream order and share the lane's workspace.
  LibraryCommand(std::vector<Part> parts, Scratch& workspace)
      : parts_(std::move(parts)), workspace_(workspace) {
    for (const Part& part : parts_) workspace.reserve(part.product->workspace_bytes());
  }
  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    for (const Part& part : parts_)
      part.product->run(stream,
                        {part.a.in(shifts), part.b.in(shifts), part.bias.in(shifts), part.c.in(shifts)},
                        workspace_.get());
  }

 private:
  std::vector<Part> parts_;
  const Scratch& workspace_;  // may still grow while other commands are made
};

/// Rows of op(A) that are contiguous and whose results are contiguous.
struct Run {
  std::int64_t from = 0, to = 0, rows = 0;
};

std::vector<Run> runs_of(const Gemm& step) {
  const RowMap& c_rows = std::get<placement::Matrix>(step.out.form).rows;
  std::vector<Run> runs;
  for (std::int64_t row = 0; row < step.grid.rows;) {
    const RowRun a = step.a_rows.run_at(row, step.grid.rows - row), c = c_rows.run_at(row, a.rows);
    if (a.matrix_row >= 0 && c.matrix_row >= 0) {
      Run* last = runs.empty() ? nullptr : &runs.back();
      if (last && last->from + last->rows == a.matrix_row && last->to + last->rows == c.matrix_row)
        last->rows += c.rows;
      else
        runs.push_back({a.matrix_row, c.matrix_row, c.rows});
    }
    row += c.rows;
  }
  return runs;
}

std::int32_t alignment_of(std::uintptr_t bits) {
  std::int32_t alignment = 16;
  while (bits % static_cast<std::uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

}  // namespace

std::shared_ptr<LibraryGemm> LibraryCache::get(const BlasHandle& handle, const LibraryProblem& problem,
                                               const LibraryOperands* operands) {
  for (const auto& [known, product] : made_)
    if (known == problem) return product;
  auto product = std::make_shared<LibraryGemm>(handle, problem);
  if (operands != nullptr) {
    const Stream stream;
    product->tune(stream.get(), *operands);
  }
  made_.emplace_back(problem, product);
  return product;
}

std::unique_ptr<Command> make_library_gemm(const Context& context, const Gemm& step) {
  const auto& buffer = [&](const Slice& slice) -> const Buffer& {
    return context.plan.buffers[static_cast<std::size_t>(slice.buffer)];
  };
  LibraryProblem problem;
  problem.type = buffer(step.a).dtype;
  problem.out_type = buffer(step.out.slice).dtype;
  problem.n = step.grid.cols;
  problem.k = step.transpose_a ? step.a.rows : step.a.cols;
  problem.transpose_a = step.transpose_a;
  problem.transpose_b = step.transpose_b;
  problem.lda = buffer(step.a).cols;
  problem.ldb = buffer(step.b).cols;
  problem.ldc = buffer(step.out.slice).cols;
  problem.relu = step.epilogue.activation == Activation::relu;
  problem.bias = step.epilogue.bias;
  const std::int32_t sms = step.resources.most;
  if (sms < context.plan.workers) problem.sms = sms;
  const auto element = static_cast<std::int64_t>(size_bytes(problem.type));
  const Address a = context.memory.at(step.a, context.parity), b = context.memory.at(step.b, context.parity),
                c = context.memory.at(step.out.slice, context.parity),
                bias = problem.bias ? context.memory.at(step.bias, context.parity) : Address{};
  std::vector<LibraryCommand::Part> parts;
  for (const Run& run : runs_of(step)) {
    const Address from = a + run.from * element * (step.transpose_a ? 1 : problem.lda);
    const Address to = c + run.to * context.memory.row_bytes(step.out.slice.buffer);
    problem.m = run.rows;
    problem.alignment =
        alignment_of(reinterpret_cast<std::uintptr_t>(from.at) | reinterpret_cast<std::uintptr_t>(b.at) |
                     reinterpret_cast<std::uintptr_t>(to.at));
    // A call must not wait for the device, so its products are not tuned.
    const LibraryOperands operands{from.at, b.at, bias.at, nullptr};
    parts.push_back({context.library.get(context.world.blas(context.rank), problem,
                                         context.memory.by_call() ? nullptr : &operands),
                     from, b, to, bias});
  }
  return std::make_unique<LibraryCommand>(std::move(parts), context.workspace);
}

}  // namespace shingle::cuda
