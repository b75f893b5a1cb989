// Gemm steps of few rows around a delivery: the kernel that loads weights early, where it is faster than
// cuBLASLt.
#include "cuda/kernels/skinny.hpp"

#include <optional>

#include "command.hpp"
#include "cuda/raii/check.hpp"
#include "elements.hpp"
#include "library.hpp"
#include "written.hpp"

namespace shingle::cuda {
namespace {

struct Addresses {
  Address a, b, c;
};

class SkinnyGemmCommand final : public Command {
 public:
  SkinnyGemmCommand(const SkinnyProblem& problem, const SkinnyLaunch& launch, const Addresses& at)
      : problem_(problem), launch_(launch), at_(at) {
    check(cudaGetDevice(&device_), "cudaGetDevice");
  }

  void enqueue(cudaStream_t stream, const Shifts& shifts) override {
    const SkinnyOperands operands{at_.a.in(shifts), at_.b.in(shifts), at_.c.in(shifts)};
    if (operands.a != set_.a || operands.b != set_.b || operands.c != set_.c) {
      set_ = {};  // if setting fails, no operands are set
      check(set_skinny_operands(problem_, operands, launch_.params),
            "set the operands of a GEMM of few rows");
      set_ = operands;
    }
    check(launch_skinny(launch_, !is_written(device_, operands.b, weight_bytes()), stream),
          "launch a GEMM of few rows");
  }

 private:
  std::size_t weight_bytes() const {
    return static_cast<std::size_t>((problem_.transpose_b ? problem_.n : problem_.k) * problem_.ldb) * 2;
  }

  SkinnyProblem problem_;
  SkinnyLaunch launch_;
  Addresses at_;
  SkinnyOperands set_{};
  int device_ = 0;
};

struct Found {
  SkinnyProblem problem;
  SkinnyLaunch launch;
  Addresses at;
};

bool can_send(const Found& found) {
  return found.problem.m <= most_sent_rows;
}

/// The kernel for a step, if there is one.
std::optional<Found> find(const Context& context, const Gemm& step) {
  const auto& buffer = [&](const Slice& slice) -> const Buffer& {
    return context.plan.buffers[static_cast<std::size_t>(slice.buffer)];
  };
  const DType type = buffer(step.a).dtype;
  const std::vector<Run> runs = runs_of(step);
  if (runs.size() != 1 || step.transpose_a || step.epilogue != Epilogue{} || type == DType::f32 ||
      buffer(step.out.slice).dtype != type)
    return std::nullopt;
  Found found;
  SkinnyProblem& problem = found.problem;
  problem.type = element(type);
  problem.m = runs.front().rows;
  problem.n = step.grid.cols;
  problem.k = step.a.cols;
  problem.lda = buffer(step.a).cols;
  problem.ldb = buffer(step.b).cols;
  problem.ldc = buffer(step.out.slice).cols;
  problem.transpose_b = step.transpose_b;
  const auto [from, to, rows] = runs.front();
  found.at = {context.memory.at(step.a, context.parity) + from * problem.lda * 2,
              context.memory.at(step.b, context.parity),
              context.memory.at(step.out.slice, context.parity) +
                  to * context.memory.row_bytes(step.out.slice.buffer)};
  // Matrices of calls are copied if they do not begin at multiples of 16 bytes.
  for (const Address& address : {found.at.a, found.at.b, found.at.c})
    if (reinterpret_cast<std::uintptr_t>(address.at) % 16 != 0) return std::nullopt;
  const std::int32_t most = step.resources.most > 0 ? step.resources.most : context.plan.workers;
  check(find_skinny(problem, most, found.launch), "find a GEMM of few rows");
  if (found.launch.kernel == nullptr) return std::nullopt;
  return found;
}

}  // namespace

bool sends_product(const Context& context, const Gemm& step) {
  const std::optional<Found> found = find(context, step);
  return found && can_send(*found);
}

std::unique_ptr<Command> make_skinny_gemm(const Context& context, const Gemm& step) {
  std::optional<Found> found = find(context, step);
  if (!found) return nullptr;
  if (context.launch.sends_until > 0 && can_send(*found))
    found->launch.params.sends = product_sends(context, step);
  return std::make_unique<SkinnyGemmCommand>(found->problem, found->launch, found->at);
}

}  // namespace shingle::cuda
