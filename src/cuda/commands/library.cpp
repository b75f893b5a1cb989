// Gemm steps without hooks: one cuBLASLt product for each contiguous run of rows.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

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

std::int32_t alignment_of(std::uintptr_t bits) {
  std::int32_t alignment = 16;
  while (bits % static_cast<std::uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

}  // namespace

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

namespace {

/// Rows whose fastest algorithm serves this number of rows: a power of two, from 256 on also in four steps to
/// the next. What is fastest for a whole number of waves of tiles may be a third slower for other rows.
std::int64_t typical_rows(std::int64_t rows) {
  if (rows == 0) return 0;
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  const std::int64_t step = rows > 256 ? power / 8 : power;
  return ceil_div(rows, step) * step;
}

LibraryProblem with_rows(LibraryProblem problem, std::int64_t rows) {
  if (problem.transpose_a && problem.lda == problem.m) problem.lda = rows;
  problem.m = rows;
  return problem;
}

}  // namespace

std::shared_ptr<LibraryGemm> LibraryCache::get(const BlasHandle& handle, const LibraryProblem& problem,
                                               const LibraryOperands& operands) {
  for (const auto& [known, product] : made_)
    if (known == problem) return product;
  auto product = std::make_shared<LibraryGemm>(handle, problem);
  const Stream stream;
  product->tune(stream.get(), operands);
  made_.emplace_back(problem, product);
  return product;
}

std::shared_ptr<LibraryGemm> LibraryCache::for_call(const BlasHandle& handle, const LibraryProblem& problem,
                                                    const std::function<void()>& settle) {
  const auto prepared = std::ranges::find(prepared_, typical(problem), &Product::first);
  auto product = prepared != prepared_.end()
                     ? std::make_shared<LibraryGemm>(handle, problem, *prepared->second)
                     : std::make_shared<LibraryGemm>(handle, problem);
  Kernel kernel = kernel_of(problem, *product);
  if (kernel.second.empty() || std::ranges::find(loaded_, kernel) != loaded_.end()) return product;
  settle();
  if (product->load(problem)) loaded_.push_back(std::move(kernel));
  return product;
}

void LibraryCache::prepare(const BlasHandle& handle, const LibraryProblem& problem) {
  const std::int64_t most = typical_rows(problem.m);
  for (std::int64_t rows = problem.m / 2 + 1; rows <= most; rows = typical_rows(rows) + 1)
    prepare_typical(handle, typical(with_rows(problem, rows)));
}

void LibraryCache::prepare_typical(const BlasHandle& handle, const LibraryProblem& p) {
  if (p.m == 0 || std::ranges::find(prepared_, p, &Product::first) != prepared_.end()) return;
  const auto matrix = [](DType type, std::int64_t rows, std::int64_t leading) {
    DeviceMemory memory(static_cast<std::size_t>(rows * leading) * size_bytes(type));
    constexpr int some_number = 0x3c;  // in each byte: a small number in every type
    memory.fill(some_number);
    return memory;
  };
  const DeviceMemory a = matrix(p.type, p.transpose_a ? p.k : p.m, p.lda),
                     b = matrix(p.type, p.transpose_b ? p.n : p.k, p.ldb),
                     bias = matrix(p.type, 1, p.bias ? p.n : 0);
  auto product = std::make_shared<LibraryGemm>(handle, p);
  const Stream stream;
  product->tune(stream.get(), {a.get(), b.get(), bias.get(), nullptr});
  loaded_.push_back(kernel_of(p, *product));
  prepared_.emplace_back(p, std::move(product));
}

std::shared_ptr<Attention> LibraryCache::get(const DnnHandle& handle, const AttentionProblem& problem,
                                             const std::function<void()>& settle) {
  std::erase_if(attentions_, [](const auto& one) { return one.second.expired(); });
  const auto known = std::ranges::find(attentions_, problem, &decltype(attentions_)::value_type::first);
  auto attention = known != attentions_.end() ? known->second.lock() : nullptr;
  if (attention && attention->is_loaded()) return attention;
  if (settle) settle();
  if (!attention) {
    attention = std::make_shared<Attention>(handle, problem);
    attentions_.emplace_back(problem, attention);
  }
  attention->load();
  return attention;
}

/// What decides which kernel cuBLASLt runs. The number of rows does not, given the algorithm.
LibraryCache::Kernel LibraryCache::kernel_of(LibraryProblem problem, const LibraryGemm& product) {
  if (problem.transpose_a) problem.lda = 0;
  problem.m = 0;
  return {problem, product.algorithm()};
}

/// The product whose algorithm serves this one.
LibraryProblem LibraryCache::typical(const LibraryProblem& problem) {
  return with_rows(problem, typical_rows(problem.m));
}

namespace {

/// The products of a step, without rows and alignment.
LibraryProblem product_of(const Plan& plan, const Gemm& step) {
  const auto& buffer = [&](const Slice& slice) -> const Buffer& {
    return plan.buffers[static_cast<std::size_t>(slice.buffer)];
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
  if (sms < plan.workers) problem.sms = sms;
  return problem;
}

}  // namespace

void prepare_library_gemm(CudaWorld& world, int rank, const Plan& plan, const Gemm& step) {
  LibraryProblem problem = product_of(plan, step);
  for (const Run& run : runs_of(step)) {
    problem.m = run.rows;
    world.library(rank).prepare(world.blas(rank), problem);
  }
}

std::unique_ptr<Command> make_library_gemm(const Context& context, const Gemm& step) {
  LibraryProblem problem = product_of(context.plan, step);
  const BlasHandle& handle = context.world.blas(context.rank);
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
    // A call must not wait for the device, so its products are not tuned there.
    parts.push_back({context.memory.by_call()
                         ? context.library.for_call(handle, problem, context.settle)
                         : context.library.get(handle, problem, {from.at, b.at, bias.at, nullptr}),
                     from, b, to, bias});
  }
  return std::make_unique<LibraryCommand>(std::move(parts), context.workspace);
}

}  // namespace shingle::cuda
