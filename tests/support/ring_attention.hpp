// Problems of allgather+attention and of its backward.
#pragma once

#include <utility>

#include "shingle/plan/problem.hpp"

namespace shingle::test {

inline constexpr RowOrder contiguous = RowOrder::contiguous, zigzag = RowOrder::zigzag;

inline Problem ring_attention(int world, std::int64_t tokens, Attention attention,
                              RowOrder order = contiguous) {
  Problem p;
  p.op = Op::allgather_attention;
  p.world = world;
  p.m = tokens;
  p.n = p.k = attention.heads * attention.head_dim;
  p.attention = std::move(attention);
  p.row_order = order;
  return p;
}

inline Problem attention_backward(int world, std::int64_t tokens, Attention attention,
                                  RowOrder order = contiguous) {
  Problem p = ring_attention(world, tokens, std::move(attention), order);
  p.op = Op::attention_backward;
  return p;
}

}  // namespace shingle::test
