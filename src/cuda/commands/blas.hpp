// Products by the library: the sequential baseline, and GEMM steps without hooks.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shingle/base/dtype.hpp"

namespace shingle::cuda {

/// cuBLASLt's handle for the device that is current when it is made.
class BlasHandle {
 public:
  BlasHandle();
  ~BlasHandle();
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;

  cublasLtHandle_t get() const noexcept { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

/// C[m×n] = op(A) · op(B), then bias and ReLU, then one rounding. fp32 accumulation, split or not; fp32
/// inputs are multiplied as such, not in tf32. All matrices are row-major; leading dimensions in elements.
/// (There is no GeLU: the library's is the tanh form, ours the exact one.)
struct LibraryProblem {
  DType type = DType::bf16;  ///< of A, B and bias
  DType out_type = DType::bf16;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  ///< A is stored k×m
  bool transpose_b = false;  ///< B is stored n×k
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;
  const void* bias = nullptr;  ///< n elements of `type`, may be null
  bool relu = false;
  std::int32_t alignment = 16;  ///< bytes of which every pointer is a multiple
  std::int32_t sms = 0;         ///< that the product may count on; 0: all

  bool operator==(const LibraryProblem&) const = default;
};

/// A product and the algorithm that the library is to use: the first of its heuristics, or the fastest of
/// them after tune().
class LibraryGemm {
 public:
  /// The handle must outlive it.
  LibraryGemm(const BlasHandle& handle, const LibraryProblem& problem);
  ~LibraryGemm();
  LibraryGemm(LibraryGemm&&) noexcept;
  LibraryGemm& operator=(LibraryGemm&&) noexcept;

  /// `workspace` has workspace_bytes(); products that share one must not run at the same time.
  void run(cudaStream_t stream, const void* a, const void* b, void* c, void* workspace) const;
  /// Of the algorithm in use.
  std::size_t workspace_bytes() const noexcept;
  /// Times every candidate on these operands, with results and workspaces in memory of its own; keeps the
  /// fastest, and returns its microseconds.
  double tune(cudaStream_t stream, const void* a, const void* b);
  std::size_t candidates() const noexcept;

 private:
  struct Descriptors;
  std::unique_ptr<Descriptors> made_;
};

}  // namespace shingle::cuda
