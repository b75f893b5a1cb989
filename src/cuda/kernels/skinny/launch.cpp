#include <algorithm>
#include <span>

#include "cuda/kernels/device_facts.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/kernels/gemm/tensor_map.hpp"
#include "cuda/kernels/launch_config.hpp"
#include "cuda/kernels/skinny.hpp"
#include "shingle/grid/tile_grid.hpp"

namespace shingle::cuda {

#ifdef SHINGLE_SM90
extern const SkinnyKernel skinny_nv_bfloat16[8], skinny_half[8];
#endif

namespace {

std::span<const SkinnyKernel> kernels_of([[maybe_unused]] Element type) {
#ifdef SHINGLE_SM90
  if (type == Element::bf16) return skinny_nv_bfloat16;
  if (type == Element::f16) return skinny_half;
#endif
  return {};
}

/// CTAs of as many tiles each, as nearly as can be; 0 if so few would not be faster than cuBLASLt.
/// Few CTAs do not read at the memory's rate, and the rows of A take more of what each CTA reads.
std::int32_t ctas_for(const SkinnyProblem& p, std::int64_t sms) {
  const std::int64_t tiles = ceil_div(p.n, skinny_columns), each = ceil_div(tiles, sms),
                     ctas = ceil_div(tiles, each);
  const std::int64_t least_percent = each > 1 ? 80 : p.m > 64 ? 60 : 45;
  return 100 * ctas >= least_percent * sms ? static_cast<std::int32_t>(ctas) : 0;
}

bool runs_on(const DeviceFacts& facts) {
  return gemm_family(facts.major, facts.minor) == GemmFamily::sm90;
}

/// op(B)ᵀ in loads of 64 columns of op(B) and a step of K.
MatrixBox weights_of(const SkinnyProblem& p, const void* b) {
  constexpr int depth = skinny_block * skinny_step_blocks;
  if (p.transpose_b) return {b, p.n, p.k, p.ldb, skinny_columns, skinny_block, skinny_step_blocks};
  return {b, p.k, p.n, p.ldb, depth, skinny_columns};
}

}  // namespace

cudaError_t find_skinny(const SkinnyProblem& p, std::int32_t most_ctas, SkinnyLaunch& launch) {
  launch = {};
  const auto odd = [](std::int64_t elements) { return elements % 8 != 0; };
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.k % skinny_block != 0 || odd(p.n) || odd(p.lda) || odd(p.ldb) ||
      odd(p.ldc))
    return cudaSuccess;
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts)) return error;
  if (!runs_on(facts)) return cudaSuccess;
  const std::int32_t ctas = ctas_for(p, most_ctas > 0 ? std::min(most_ctas, facts.sms) : facts.sms);
  if (ctas == 0) return cudaSuccess;
  for (const SkinnyKernel& one : kernels_of(p.type))
    if (one.transpose_b == p.transpose_b && one.rows >= p.m &&
        (launch.kernel == nullptr || one.rows < launch.kernel->rows))
      launch.kernel = &one;
  launch.ctas = ctas;
  SkinnyParams& params = launch.params;
  params.ldc = p.ldc;
  params.m = static_cast<std::int32_t>(p.m);
  params.n = static_cast<std::int32_t>(p.n);
  params.tiles = static_cast<std::int32_t>(ceil_div(p.n, skinny_columns));
  params.steps = static_cast<std::int32_t>(ceil_div(p.k, skinny_block * skinny_step_blocks));
  params.box_rows = static_cast<std::int32_t>(ceil_div(p.m, 8) * 8);
  return cudaSuccess;
}

cudaError_t set_skinny_operands(const SkinnyProblem& p, const SkinnyOperands& operands,
                                SkinnyParams& params) {
  params.c = operands.c;
  const MatrixBox rows{operands.a, p.m, p.k, p.lda, params.box_rows, skinny_block, skinny_step_blocks};
  if (const cudaError_t error = encode_tensor_map(rows, params.rows)) return error;
  return encode_tensor_map(weights_of(p, operands.b), params.weights);
}

cudaError_t launch_skinny(SkinnyLaunch& launch, bool early, cudaStream_t stream) {
  const SkinnyKernel& kernel = *launch.kernel;
  const LaunchConfig config(launch.ctas, kernel.threads, kernel.shared_bytes, stream, {1, early});
  void* parameters[] = {&launch.params};
  return cudaLaunchKernelExC(&config.get(), kernel.kernel, parameters);
}

cudaError_t preload_skinny() {
  DeviceFacts facts;
  if (const cudaError_t error = find_device_facts(facts)) return error;
  if (!runs_on(facts)) return cudaSuccess;
  for (const Element type : {Element::bf16, Element::f16})
    for (const SkinnyKernel& one : kernels_of(type))
      if (const cudaError_t error =
              cudaFuncSetAttribute(one.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, one.shared_bytes))
        return error;
  return cudaSuccess;
}

}  // namespace shingle::cuda
