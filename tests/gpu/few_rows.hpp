// Random problems of few rows, as in decoding.
#pragma once

#include "support/random_problem.hpp"

namespace shingle::test {

/// Problems of few rows. Rows of some are longer than a CTA holds at a chunk a thread.
inline Problem draw_few_rows(Dice& dice, int world) {
  Problem p;
  p.world = world;
  p.op = one_of(dice, {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::allreduce,
                       Op::reducescatter, Op::gemm_allreduce});
  p.m = dice.size(1, chance(dice, 30) ? 400 : 20);
  p.n = 8 * dice.size(1, chance(dice, 20) ? 2500 : 300);
  p.k = p.traits().multiplies() ? 8 * dice.size(1, 100) : p.n;
  if (p.traits().multiplies() && chance(dice, 40)) {  // weights that may be loaded early
    p.n = 8 * dice.size(480, 1100);
    p.k = 64 * dice.size(1, 6);
  }
  p.dtype = one_of(dice, {DType::bf16, DType::f16, DType::f32});
  if (p.traits().multiplies() && p.dtype == DType::f32) p.dtype = DType::bf16;
  if (p.traits().multiplies()) {
    p.transpose_b = chance(dice, 60);
    p.epilogue.bias = chance(dice, 30);
    p.epilogue.activation =
        one_of(dice, {Activation::none, Activation::none, Activation::gelu, Activation::silu});
  }
  if (p.op == Op::allreduce || p.op == Op::gemm_allreduce || p.op == Op::gemm_reducescatter)
    if (chance(dice, 50)) p.norm = {true, chance(dice, 60)};
  return p;
}

}  // namespace shingle::test
