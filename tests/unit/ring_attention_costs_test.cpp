// What ring attention is predicted to cost, and what is chosen for it.
#include <gtest/gtest.h>

#include "api/choose.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/sim/metrics.hpp"
#include "shingle/sim/simulate.hpp"
#include "support/ring_attention.hpp"
#include "tune/search.hpp"

namespace shingle::ring_attention_costs_test {
namespace {

using test::contiguous;
using test::ring_attention;
using test::zigzag;

constexpr int ranks = 8;

Problem problem(RowOrder order, bool causal = true, std::int64_t kv_heads = 32) {
  Problem p = ring_attention(ranks, 1 << 16, {32, kv_heads, 128, causal}, order);
  p.dtype = DType::bf16;
  return p;
}

Machine h200() {
  return machine_from_spec("h200x8");
}

double us_of(const Plan& plan) {
  return simulate(plan, h200()).makespan_us;
}

/// With contiguous shards the last rank has 2 − 1/W of the mean work.
TEST(RingAttentionCosts, AreThoseOfTheKeysThatAreSeen) {
  const auto attention_us = [](const Problem& p) {
    return measure(plan_sequential(p, h200(), {}).value(), h200()).value().compute_us;
  };
  const double even = attention_us(problem(zigzag));
  EXPECT_NEAR(attention_us(problem(contiguous)) / even, 2 - 1.0 / ranks, 0.1);
  EXPECT_NEAR(attention_us(problem(contiguous, false)) / even, 2, 0.1);
}

/// Parts take as long as the whole, and merges next to nothing.
TEST(RingAttentionCosts, OfPartsAreThoseOfTheWhole) {
  const Plan ring = plan_ring(problem(contiguous, false), h200(), {.engines = 1}).value();
  const double compute_us = measure(ring, h200()).value().compute_us;
  EXPECT_GT(us_of(ring), compute_us);
  EXPECT_LT(us_of(ring), 1.1 * compute_us);
}

TEST(RingAttentionCosts, LetTheFasterPlanBeChosen) {
  for (const std::int64_t kv_heads : {2, 32}) {
    const Problem p = problem(zigzag, true, kv_heads);
    const Tuned sequential = tune(p, h200(), Mechanism::sequential).value();
    const Tuned ring = tune(p, h200(), Mechanism::ring).value();
    EXPECT_LE(ring.us, us_of(plan_ring(p, h200(), {}).value()));
    const Plan chosen = choose(p, h200()).value().plan;
    EXPECT_LE(us_of(chosen), sequential.us);
    if (kv_heads == 32) {
      EXPECT_EQ(chosen.mechanism, Mechanism::ring);
    }
  }
}

/// Five products, where the forward has two. The last wave of the forward's tiles is not full.
TEST(RingAttentionCosts, OfTheBackwardAreTwoAndAHalfTimesThoseOfTheForward) {
  for (const RowOrder order : {contiguous, zigzag}) {
    const Problem forward = problem(order);
    Problem backward = forward;
    backward.op = Op::attention_backward;
    const auto of = [](const Problem& p) {
      return measure(plan_sequential(p, h200(), {}).value(), h200()).value();
    };
    EXPECT_NEAR(of(backward).compute_us / of(forward).compute_us, 2.5, 0.1);
    EXPECT_DOUBLE_EQ(of(backward).flops / of(forward).flops, 2.5);
  }
}

/// The baseline moves K and V to all ranks, and their gradients back. Engines hide most of both.
TEST(RingAttentionCosts, OfTheBackwardAroundARingAreLessThanThoseOfTheBaseline) {
  Problem p = problem(zigzag);
  p.op = Op::attention_backward;
  const Metrics metrics = measure(plan_ring(p, h200(), {.engines = 1}).value(), h200()).value();
  EXPECT_GT(metrics.us, metrics.compute_us);
  EXPECT_LT(metrics.us - metrics.compute_us, 0.6 * (metrics.sequential_us - metrics.compute_us));
}

}  // namespace
}  // namespace shingle::ring_attention_costs_test
