// A rank's products by cuBLASLt and attentions by cuDNN. Equal ones are made once; products are also tuned.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "blas.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle::cuda {

/// Rows of op(A) that are contiguous and whose results are contiguous.
struct Run {
  std::int64_t from = 0, to = 0, rows = 0;
};
/// The runs of a step that stores its product as a matrix.
std::vector<Run> runs_of(const Gemm& step);

class LibraryCache {
 public:
  /// The product of this problem, with the fastest of cuBLASLt's candidates on these operands.
  std::shared_ptr<LibraryGemm> get(const BlasHandle& handle, const LibraryProblem& problem,
                                   const LibraryOperands& operands);
  /// A product for calls: neither tuned nor kept. Takes the algorithm that prepare() has found for as many
  /// rows, rounded up, or else cuBLASLt's first. Makes CUDA load a kernel that is new.
  ///
  /// The driver loads when the device is idle, and waits for that without a deadline. `settle` has one: it
  /// waits for earlier calls, whose kernels may be waiting for a rank that is gone.
  std::shared_ptr<LibraryGemm> for_call(const BlasHandle& handle, const LibraryProblem& problem,
                                        const std::function<void()>& settle);
  /// An attention, kept as long as it is used. CUDA loads the kernels of a new one, which needs an idle
  /// device as in for_call(). `settle` waits for earlier calls; outside of calls it is empty.
  std::shared_ptr<Attention> get(const DnnHandle& handle, const AttentionProblem& problem,
                                 const std::function<void()>& settle);
  /// Finds the fastest algorithm for a product and for products of fewer rows, more than half as many.
  void prepare(const BlasHandle& handle, const LibraryProblem& problem);

 private:
  using Product = std::pair<LibraryProblem, std::shared_ptr<LibraryGemm>>;
  using Kernel = std::pair<LibraryProblem, std::vector<std::uint64_t>>;  // algorithm, as cuBLASLt encodes it
  static LibraryProblem typical(const LibraryProblem& problem);
  void prepare_typical(const BlasHandle& handle, const LibraryProblem& problem);
  static Kernel kernel_of(LibraryProblem problem, const LibraryGemm& product);

  std::vector<Product> made_;
  std::vector<Product> prepared_;  // for calls
  std::vector<Kernel> loaded_;     // of calls
  std::vector<std::pair<AttentionProblem, std::weak_ptr<Attention>>> attentions_;
};

}  // namespace shingle::cuda
