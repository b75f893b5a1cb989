// Tensor and data parallelism together: ranks of two meshes, each group with contexts of its own, whose calls
// overlap in any way while ranks are delayed at random. Nothing waits for ever, and every result is right.
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "api/workspace.hpp"
#include "shingle/api/context.hpp"
#include "shingle/host/host.hpp"
#include "shingle/verify/verify.hpp"
#include "support/random_problem.hpp"

namespace shingle::overlapping_contexts_test {
namespace {

/// Delays each lane before some of its steps, by a hash of where it is and of the test's seed.
std::function<void(const StepEvent&)> delays(std::uint32_t seed) {
  return [seed](const StepEvent& at) {
    const auto where = static_cast<std::uint32_t>(at.rank * 7919 + at.lane * 104729 + at.step * 1299709 +
                                                  at.epoch * 15485863);
    const std::uint32_t drawn = ((where + seed) * 2654435761u) >> 20;
    if (drawn % 6 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn % 1024));
  };
}

/// One call with its matrices, which stay until it is done.
struct Call {
  std::unique_ptr<Inputs> inputs;
  std::unique_ptr<Workspace> memory;
};

/// The contexts of a process group, and the operators that they serve.
class Group {
 public:
  Group(test::Dice& draw, int ranks, std::uint32_t seed) : draw_(draw) {
    world_ = make_thread_world(ranks, {.workers_per_rank = 1, .on_step = delays(seed)});
  }
  /// Adds a context for problems. Each call is of one of them.
  void add(const std::vector<Problem>& problems, const std::vector<Params>& params) {
    contexts_.emplace_back(*world_, ContextOptions{.registered_bytes = 1, .timeout_us = 20e6});
    for (std::size_t i = 0; i < problems.size(); ++i) contexts_.back().declare(problems[i], {params[i]});
    problems_.push_back(problems);
  }
  void call_any() {
    const auto context = static_cast<std::size_t>(draw_.size(0, std::ssize(contexts_) - 1));
    const auto op = static_cast<std::size_t>(draw_.size(0, std::ssize(problems_[context]) - 1));
    Problem problem = problems_[context][op];
    problem.m = draw_.size(1, problem.m);
    Call& call = calls_.emplace_back();
    call.inputs =
        random_inputs(problem, static_cast<std::uint64_t>(draw_.size(0, 1 << 20)), Values::integers);
    call.memory = std::make_unique<Workspace>(*world_, *call.inputs);
    call.memory->poison_outputs();
    contexts_[context].call(static_cast<int>(op), problem.m, call.memory->arguments(problem));
  }
  void expect_right() {
    for (Context& context : contexts_) context.synchronize();
    for (Call& call : calls_) {
      const Check result = check(*call.inputs, call.memory->outputs());
      EXPECT_TRUE(result.passed) << describe(call.inputs->problem()) << ": " << result.worst;
    }
  }

 private:
  test::Dice& draw_;
  std::unique_ptr<World> world_;
  std::list<Call> calls_;  // outlive the contexts, whose end waits for calls
  std::vector<Context> contexts_;
  std::vector<std::vector<Problem>> problems_;
};

Problem bucket(Op op, int ranks) {
  Problem p{.op = op, .world = ranks, .m = 90, .n = 16, .k = 16, .dtype = DType::bf16};
  if (op != Op::allgather) p.epilogue.scale = 1.0f / 4, p.f32_sums = op == Op::reducescatter;
  return p;
}

CopyEngineParams engines(test::Dice& draw) {
  return {.variant = test::one_of(draw, {CopyVariant::b2b, CopyVariant::pcpy, CopyVariant::ring}),
          .trigger = EngineTrigger::direct,
          .sum_slices = static_cast<std::int32_t>(draw.size(0, 3)),
          .sum_workers = 1};
}

/// Contexts of data parallelism: one for gathers, and one for sums.
void add_buckets(test::Dice& draw, Group& group, int ranks) {
  group.add({bucket(Op::allgather, ranks)}, {engines(draw)});
  group.add({bucket(Op::reducescatter, ranks), bucket(Op::allreduce, ranks)}, {engines(draw), engines(draw)});
}

/// A context of tensor parallelism, with kernels that wait for other ranks while they hold workers.
void add_products(Group& group, int ranks) {
  const Problem base{.world = ranks, .m = 64, .n = 48, .k = 32, .dtype = DType::f32};
  Problem gathering = base, scattering = base;
  gathering.op = Op::allgather_gemm, scattering.op = Op::gemm_reducescatter;
  group.add({gathering, scattering}, {FusedParams{}, FusedParams{}});
}

TEST(OverlappingContexts, OfTensorAndDataParallelismNeverWaitForEver) {
  constexpr auto budget = std::chrono::seconds(20);
  const auto start = std::chrono::steady_clock::now();
  std::uint32_t seed = 0;
  for (; seed < 60 && std::chrono::steady_clock::now() - start < budget; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Dice draw(seed);
    // A mesh of 2×2 ranks: two groups of tensor parallelism, and two of data parallelism.
    std::list<Group> groups;
    for (int i = 0; i < 4; ++i) {
      Group& group = groups.emplace_back(draw, 2, 31 * seed + static_cast<std::uint32_t>(i));
      i < 2 ? add_products(group, 2) : add_buckets(draw, group, 2);
    }
    for (std::int64_t i = draw.size(8, 24); i > 0; --i)
      std::next(groups.begin(), draw.size(0, 3))->call_any();
    for (Group& group : groups) group.expect_right();
    if (HasFailure()) break;
  }
  EXPECT_GT(seed, 2u);
}

/// What lets them share a GPU: kernels of buckets that wait hold no SM for themselves, and their sums
/// complete on one SM. So contexts of products need to leave two (docs/concepts/contexts.md).
TEST(OverlappingContexts, BucketsHoldNoWorkersWhileTheyWait) {
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (const Op op : {Op::allgather, Op::reducescatter, Op::allreduce})
      for (const CopyVariant variant : {CopyVariant::b2b, CopyVariant::pcpy, CopyVariant::ring}) {
        Machine machine;
        machine.workers = 1;
        const CopyEngineParams params{
            .variant = variant, .trigger = EngineTrigger::direct, .sum_slices = 4, .sum_workers = 16};
        const auto plan = make_plan(bucket(op, ranks), machine, params);
        ASSERT_TRUE(plan) << plan.reason();
        const Proof proof = verify(*plan, Setting::context);
        EXPECT_TRUE(proof) << name(op) << " by " << name(variant) << ": " << proof.failure;
        for (const RankPlan& rank : plan->ranks)
          for (const Lane& lane : rank.lanes)
            for (const Step& step : lane.steps) {
              const auto* pass = std::get_if<Elementwise>(&step);
              EXPECT_TRUE(pass == nullptr || pass->gates.empty()) << "a pass that waits holds its workers";
              EXPECT_FALSE(std::holds_alternative<Gemm>(step) || std::holds_alternative<Collective>(step));
            }
      }
}

}  // namespace
}  // namespace shingle::overlapping_contexts_test
