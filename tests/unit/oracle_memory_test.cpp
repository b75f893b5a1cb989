// What the oracle takes of memory, against what it says that it takes: every allocation of this program is
// counted.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "check/oracle.hpp"
#include "shingle/plan/shapes.hpp"

namespace {

std::atomic<std::int64_t> live{0}, peak{0};

}  // namespace

void* operator new(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  const std::int64_t now = live += static_cast<std::int64_t>(malloc_usable_size(memory));
  for (std::int64_t most = peak; most < now && !peak.compare_exchange_weak(most, now);) {
  }
  return memory;
}

void operator delete(void* memory) noexcept {
  live -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace shingle {
namespace {

Problem problem_of(Op op, int world, std::int64_t m, std::int64_t n, std::int64_t k) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = m;
  p.n = n;
  p.k = k;
  return p;
}

Problem attention_of(Op op, std::int64_t tokens, std::vector<std::int64_t> lengths) {
  constexpr std::int64_t dim = 4;
  Problem p = problem_of(op, 1, tokens, dim, dim);
  p.attention = {.heads = 1, .kv_heads = 1, .head_dim = dim, .causal = true, .lengths = std::move(lengths)};
  return p;
}

void expect_within_what_it_says(const Problem& problem) {
  problem.validate();
  const auto inputs = random_inputs(problem, 1);
  const Shape shape = shape_of(problem, Role::out, 0);
  std::vector<std::byte> memory(static_cast<std::size_t>(shape.rows * shape.cols) *
                                size_bytes(problem.dtype));
  const Output out{0, Role::out, memory.data()};
  const std::int64_t before = peak = live.load();
  check(*inputs, {&out, 1});
  constexpr std::int64_t small_things = 1 << 16;
  EXPECT_LE(peak - before, check_bytes(problem) + small_things) << describe(problem);
}

TEST(OracleMemory, IsWithinWhatItSays) {
  expect_within_what_it_says(problem_of(Op::gemm_allreduce, 2, 600, 300, 700));
  expect_within_what_it_says(attention_of(Op::ulysses_attention, 3000, {}));
  expect_within_what_it_says(attention_of(Op::attention_reducescatter, 3000, {}));
  expect_within_what_it_says(attention_of(Op::allgather_attention, 3000, {}));
  expect_within_what_it_says(attention_of(Op::attention_backward, 3000, {}));
  expect_within_what_it_says(attention_of(Op::ulysses_attention, 3000, {1000, 200, 1800}));
}

/// Terms of tokens name each choice, which takes more than their products if these are narrow.
TEST(OracleMemory, IsWithinWhatItSaysOfNarrowExperts) {
  for (const Op op :
       {Op::alltoall_grouped_gemm, Op::moe, Op::moe_tp, Op::grouped_gemm_reducescatter, Op::moe_allreduce}) {
    Problem p{.op = op, .world = 4, .n = 8, .k = 8, .experts = {8, 4, 6000}};
    if (p.traits().chains()) p.inner = 8;
    expect_within_what_it_says(with_m(p, 6000));
  }
}

}  // namespace
}  // namespace shingle
