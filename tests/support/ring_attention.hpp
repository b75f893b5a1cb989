// Problems of attention alone: of Ulysses, of allgather+attention and of its backward.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "shingle/plan/problem.hpp"

namespace shingle::test {

inline constexpr RowOrder contiguous = RowOrder::contiguous, zigzag = RowOrder::zigzag;

inline Problem ulysses(int world, std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads,
                       std::int64_t dim, bool causal = false, std::vector<std::int64_t> lengths = {}) {
  Problem p;
  p.op = Op::ulysses_attention;
  p.world = world;
  p.m = tokens;
  p.n = p.k = heads * dim;
  p.attention = {heads, kv_heads, dim, causal, std::move(lengths)};
  return p;
}

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

/// Random problems of the last two, drawn from a seed.
class AttentionDraw {
 public:
  explicit AttentionDraw(unsigned seed) : random_(seed) {}
  std::int64_t operator()(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  /// Heads that the world need not divide, and up to `most` sequences of up to `longest` tokens.
  Problem problem(Op op, int world, std::int64_t most, std::int64_t longest) {
    Attention attention;
    attention.kv_heads = (*this)(1, 3);
    attention.heads = attention.kv_heads * (*this)(1, 3);
    attention.head_dim = 4 * (*this)(1, 3);
    attention.causal = (*this)(0, 2) > 0;
    std::int64_t tokens = 0;
    for (std::int64_t i = (*this)(1, most); i > 0; --i)
      tokens += attention.lengths.emplace_back((*this)(1, longest));
    if (attention.lengths.size() == 1) attention.lengths.clear();
    attention.returns_lse = op == Op::allgather_attention && (*this)(0, 1) == 1;
    Problem p = ring_attention(world, tokens, std::move(attention), (*this)(0, 1) == 1 ? zigzag : contiguous);
    p.op = op;
    return p;
  }

 private:
  std::mt19937 random_;
};

}  // namespace shingle::test
