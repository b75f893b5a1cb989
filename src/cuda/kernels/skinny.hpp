// Products of few rows: C[m×n] = A[m×k] · op(B), whose time is that of reading B, the weights.
//
// With `early` the kernel reads as many weights as its SMs hold before the kernels ahead of it in the stream
// have ended (programmatic dependent launch). So the weights of one layer come while the sum of the layer
// before is under way. Nobody may write B meanwhile. All else waits for these kernels.
//
// Instead of storing C the kernel may send up to 32 rows of it to the flagged memory of ranks.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "elementwise.hpp"
#include "flagged.hpp"

namespace shingle::cuda {

inline constexpr int skinny_columns = 64;     ///< of op(B) in a tile
inline constexpr int skinny_block = 64;       ///< of K: a row of a load, 128 bytes
inline constexpr int skinny_step_blocks = 2;  ///< in a step along K
/// Rows of C that the kernel can send. It ends only when its stores to peers have arrived, so for more rows
/// the delivery behind it sends them faster.
inline constexpr int most_sent_rows = 32;

/// All matrices are row-major, and leading dimensions are in elements.
struct SkinnyProblem {
  Element type = Element::bf16;  ///< of A, B and C; bf16 or f16
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t ldc = 0;
  bool transpose_b = false;  ///< B is stored n×k
};

struct SkinnyOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
};

/// The arguments of a kernel.
struct SkinnyParams {
  CUtensorMap weights;
  CUtensorMap rows;
  void* c = nullptr;
  std::int64_t ldc = 0;
  std::int32_t m = 0;
  std::int32_t n = 0;
  std::int32_t tiles = 0;     ///< of 64 columns
  std::int32_t steps = 0;     ///< along K
  std::int32_t box_rows = 0;  ///< of A in a load, a multiple of 8
  ProductSends sends;
};

/// A compiled kernel: element type, layout of B, and the most rows of A.
struct SkinnyKernel {
  Element type = Element::bf16;
  bool transpose_b = false;
  std::int32_t rows = 0;
  const void* kernel = nullptr;
  std::int32_t threads = 0;
  std::int32_t shared_bytes = 0;
};

/// A product that a kernel serves on the current device.
struct SkinnyLaunch {
  const SkinnyKernel* kernel = nullptr;
  std::int32_t ctas = 0;
  SkinnyParams params;
};

/// The kernel and CTAs for a problem on the current device, with at most `most_ctas` of them (0: no limit).
/// Leaves `kernel` null where cuBLASLt is as fast or the only one: with more than 128 rows, on SMs that the
/// tiles would not keep busy, for other GPUs than compute capability 9.0, for K that is not a multiple of 64,
/// and for n and leading dimensions that are not multiples of 8.
cudaError_t find_skinny(const SkinnyProblem& problem, std::int32_t most_ctas, SkinnyLaunch& launch);
/// Sets the operands, which begin at multiples of 16 bytes.
cudaError_t set_skinny_operands(const SkinnyProblem& problem, const SkinnyOperands& operands,
                                SkinnyParams& params);
cudaError_t launch_skinny(SkinnyLaunch& launch, bool early, cudaStream_t stream);

/// Loads the kernels. Call once for each device: loading a kernel while another one waits could deadlock.
cudaError_t preload_skinny();

}  // namespace shingle::cuda
