// Matrix products by cuBLASLt: the sequential baseline, and GEMM steps without hooks.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shingle/base/dtype.hpp"

namespace shingle::cuda {

/// cuBLASLt's handle. Belongs to the device that is current at construction.
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

/// C[m×n] = op(A) · op(B), then bias and ReLU, then one rounding. Accumulates in fp32, with and without
/// split-K. fp32 inputs are multiplied in fp32, not in tf32. All matrices are row-major; leading dimensions
/// are in elements. There is no GeLU: cuBLASLt has the tanh form, and our GeLU is exact.
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
  bool bias = false;
  bool relu = false;
  std::int32_t alignment = 16;  ///< bytes; every pointer is a multiple of it
  std::int32_t sms = 0;         ///< SMs that the product may use; 0: all

  bool operator==(const LibraryProblem&) const = default;
};

/// Matrices of a product; `bias` has n elements.
struct LibraryOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
};

/// A product and cuBLASLt's algorithm for it: the first candidate of the heuristics, or the fastest candidate
/// after tune().
class LibraryGemm {
 public:
  /// The handle must outlive this object.
  LibraryGemm(const BlasHandle& handle, const LibraryProblem& problem);
  /// With the algorithm of a similar product, if it serves this one; else as above.
  LibraryGemm(const BlasHandle& handle, const LibraryProblem& problem, const LibraryGemm& similar);
  ~LibraryGemm();
  LibraryGemm(LibraryGemm&&) noexcept;
  LibraryGemm& operator=(LibraryGemm&&) noexcept;

  /// `workspace` has workspace_bytes() bytes. Products that share a workspace must not run concurrently.
  void run(cudaStream_t stream, const LibraryOperands& operands, void* workspace);
  /// For the algorithm in use.
  std::size_t workspace_bytes() const noexcept;
  /// Times every candidate on these operands and keeps the fastest; returns its microseconds. Allocates
  /// results (instead of `c`) and workspaces for the trial.
  double tune(cudaStream_t stream, LibraryOperands operands);
  std::size_t candidates() const noexcept;
  /// The algorithm in use, as cuBLASLt encodes it; empty without results.
  std::vector<std::uint64_t> algorithm() const;
  /// Makes CUDA load the kernel in use, by one run on matrices of its own. `problem` is that of the product.
  /// Fit for a thread that captures a stream in relaxed mode: waits for no other stream. False if there is no
  /// memory for the matrices.
  bool load(const LibraryProblem& problem);

 private:
  struct Descriptors;
  void describe(const BlasHandle& handle, const LibraryProblem& problem);
  void find_algorithms(const LibraryProblem& problem);

  std::unique_ptr<Descriptors> made_;
};

}  // namespace shingle::cuda
