// The facade: what it refuses, what it chooses, and that it computes.
#include "shingle/api/operator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/measure.hpp"
#include "api/own_profile.hpp"
#include "api/workspace.hpp"
#include "backend/remote.hpp"
#include "shingle/base/error.hpp"
#include "support/simulated_world.hpp"
#include "verify/residency.hpp"

namespace shingle::operator_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Problem problem_of(Op op, int world) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = 48;
  p.n = 40;
  p.k = 24;
  if (p.traits().chains()) p.inner = 32;
  return p;
}

std::unique_ptr<World> threads(int ranks) {
  return make_world(ranks, {.backend = "host"});
}

TEST(Operator, RunsEveryMechanismThatServes) {
  const auto world = threads(3);
  for (const Op op : {Op::gemm, Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm, Op::mlp}) {
    const Problem problem = problem_of(op, 3);
    const auto inputs = random_inputs(problem, 1, Values::integers);
    Workspace memory(*world, *inputs);
    int served = 0;
    for (const PlannerEntry& entry : planners()) {
      if (!make_plan(problem, world->machine(), default_params(entry.mechanism))) continue;
      Operator operation(*world, problem, {.params = default_params(entry.mechanism), .verify = true});
      memory.bind(operation);
      memory.poison_outputs();
      EXPECT_FALSE(check(*inputs, memory.outputs()).passed);
      operation.run();
      EXPECT_TRUE(check(*inputs, memory.outputs()).passed)
          << describe(problem) << " by " << name(entry.mechanism);
      ++served;
    }
    EXPECT_GE(served, op == Op::gemm ? 1 : 2);
  }
}

TEST(Operator, ChoosesTheFinestMechanismThatServes) {
  const auto world = threads(2);
  EXPECT_EQ(Operator(*world, problem_of(Op::gemm_allreduce, 2)).plan().mechanism, Mechanism::fused);
  Problem dealt = problem_of(Op::gemm_reducescatter, 2);
  dealt.row_order = RowOrder::block_cyclic, dealt.row_block = 4;
  EXPECT_EQ(Operator(*world, dealt).plan().mechanism, Mechanism::signal);
  EXPECT_EQ(Operator(*world, problem_of(Op::gemm, 2)).plan().mechanism, Mechanism::sequential);
}

TEST(Operator, GivesTheReasonWhereNothingServes) {
  const auto world = threads(2);
  EXPECT_THAT([&] { Operator(*world, problem_of(Op::allgather_gemm, 2), {.params = SignalParams{}}); },
              ThrowsMessage<Unsupported>(HasSubstr("chunked")));
  EXPECT_THAT([&] { Operator(*world, problem_of(Op::gemm, 3)); },
              ThrowsMessage<InvalidArgument>("the problem is for 3 ranks, the world has 2"));
  Problem wrong = problem_of(Op::gemm, 2);
  wrong.k = 0;
  EXPECT_THAT([&] { Operator(*world, wrong); }, ThrowsMessage<InvalidArgument>(HasSubstr("k = 0")));
}

TEST(Operator, RefusesWrongAndMissingMatrices) {
  const auto world = threads(2);
  Operator op(*world, problem_of(Op::gemm_allreduce, 2));
  std::vector<float> memory(48 * 40);
  EXPECT_THAT([&] { op.bind(0, Role::bias, memory.data()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no matrix 'bias'")));
  EXPECT_THAT([&] { op.bind(2, Role::a, memory.data()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rank 2")));
  EXPECT_THAT([&] { op.bind(1, Role::a, nullptr); },
              ThrowsMessage<InvalidArgument>("matrix 'a' of rank 1: null given"));
  for (const Role role : {Role::a, Role::b, Role::out}) op.bind(0, role, memory.data());
  EXPECT_THAT([&] { op.run(); }, ThrowsMessage<InvalidArgument>("matrix 'a' of rank 1 is not bound"));
}

TEST(Operator, ChecksShapeAndTypeOfWhatIsBound) {
  const auto world = threads(2);
  Operator op(*world, problem_of(Op::gemm_allreduce, 2));  // a: 48x24, b: 24x40, out: 48x40
  std::vector<float> a(48 * 24), short_by_one(48 * 24 - 1);
  std::vector<std::uint16_t> bits(48 * 24);
  op.bind(0, Role::a, a);
  op.bind(0, Role::a, {a.data(), {48, 24}, DType::f32});
  EXPECT_THAT([&] { op.bind(1, Role::a, short_by_one); },
              ThrowsMessage<InvalidArgument>(
                  "matrix 'a' of rank 1: 1151 elements of f32 given, expected 48x24 f32 (1152 elements)"));
  EXPECT_THAT(
      [&] { op.bind(0, Role::a, bits); },
      ThrowsMessage<InvalidArgument>(
          "matrix 'a' of rank 0: 1152 elements of 16 bits given, expected 48x24 f32 (1152 elements)"));
  EXPECT_THAT([&] { op.bind(0, Role::a, {a.data(), {24, 48}, DType::f32}); },
              ThrowsMessage<InvalidArgument>(
                  "matrix 'a' of rank 0: 24x48 f32 given, expected 48x24 f32 (1152 elements)"));
  EXPECT_THAT([&] { op.bind(0, Role::a, {a.data(), {48, 24}, DType::bf16}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("48x24 bf16 given, expected 48x24 f32")));
  EXPECT_THAT([&] { op.bind(0, Role::a, {nullptr, {48, 24}, DType::f32}); },
              ThrowsMessage<InvalidArgument>("matrix 'a' of rank 0: null given"));
  EXPECT_THAT([&] { op.bind(2, Role::a, a); }, ThrowsMessage<InvalidArgument>(HasSubstr("rank 2")));

  Problem half = problem_of(Op::gemm_allreduce, 2);
  half.dtype = DType::bf16;
  Operator sixteen(*world, half);
  sixteen.bind(0, Role::a, bits);
  EXPECT_THAT([&] { sixteen.bind(0, Role::a, a); },
              ThrowsMessage<InvalidArgument>(HasSubstr("1152 elements of f32 given, expected 48x24 bf16")));
}

TEST(Operator, StagesMatricesThatPeersCannotAccess) {
  const auto world = make_world(3, {.backend = "host", .workers_per_rank = 4});
  int direct_plans = 0;  // plans in which ranks access matrices of their peers
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm}) {
    const Problem problem = problem_of(op, 3);
    const auto inputs = random_inputs(problem, 1, Values::integers);
    Workspace memory(*world, *inputs);
    const auto expect_right = [&](Operator& operation) {
      memory.bind(operation);
      for (int i = 0; i < 2; ++i) {
        memory.poison_outputs();
        operation.executable().poison();
        operation.run();
        EXPECT_TRUE(check(*inputs, memory.outputs()).passed)
            << describe(problem) << " by " << name(operation.plan().mechanism);
      }
    };
    const Params all[] = {
        SequentialParams{},
        ChunkedParams{},
        SignalParams{},
        RingParams{.engines = 1},
        FusedParams{.helpers = 2, .pull = op == Op::allgather_gemm},
        CopyEngineParams{},
    };
    for (const Params& params : all) {
      const Result<Plan> direct = make_plan(problem, world->machine(), params);
      if (!direct) continue;
      direct_plans += remote_user_buffers(*direct).empty() ? 0 : 1;
      Operator staged(*world, problem, {.params = params, .registered = false, .verify = true});
      EXPECT_TRUE(remote_user_buffers(staged.plan()).empty()) << name(direct->mechanism);
      const Params chosen = params_of(staged.plan());
      EXPECT_EQ(mechanism_of(chosen), mechanism_of(params));
      if (const auto* fused = std::get_if<FusedParams>(&chosen)) {
        EXPECT_TRUE(fused->unregistered);
        EXPECT_FALSE(fused->pull);
      }
      if (const auto* copies = std::get_if<CopyEngineParams>(&chosen)) {
        EXPECT_TRUE(copies->unregistered);
      }
      expect_right(staged);

      Operator given(*world, *direct, 1e6);
      expect_right(given);
      EXPECT_EQ(given.plan(), *direct) << "a plan that was given stays as it is";
    }
    Operator finest(*world, problem, {.registered = false, .verify = true});
    EXPECT_EQ(finest.plan().mechanism, Mechanism::fused);
    EXPECT_TRUE(std::get<FusedParams>(params_of(finest.plan())).unregistered);
    expect_right(finest);
  }
  EXPECT_GE(direct_plans, 3);
}

/// As GPUs, where a profile that measured no collectives would leave them no SM.
TEST(Operator, ReservesTheWorkersThatCallsTakeHere) {
  test::SimulatedParts parts;
  parts.told.workers = 8, parts.told.collective_workers = 2;
  test::SimulatedWorld world(parts);
  Machine profile;
  profile.workers = 8, profile.tile_rows = profile.tile_cols = 8;
  Problem problem{.op = Op::moe, .world = 2, .n = 24, .k = 16, .inner = 32, .experts = {4, 2, 8}};
  problem = with_m(problem, 20);
  EXPECT_NE(starved_call(make_plan(problem, profile, SignalParams{}).value()), std::nullopt);
  const Operator op(world, problem, {.params = SignalParams{}, .profile = profile, .verify = true});
  EXPECT_EQ(starved_call(op.plan()), std::nullopt);
  profile.collective_workers = 3;
  EXPECT_EQ(machine_for(world, profile), profile);
  EXPECT_EQ(machine_for(world, std::nullopt), parts.told);
  EXPECT_EQ(machine_for(*threads(2), Machine{}).collective_workers, 0);
}

TEST(Operator, EnqueuesOnAStreamOfEachRank) {
  const auto world = threads(2);
  Operator op(*world, problem_of(Op::gemm_allreduce, 2));
  EXPECT_THAT([&] { op.prepare(); }, ThrowsMessage<InvalidArgument>("matrix 'a' of rank 0 is not bound"));
  const auto inputs = random_inputs(op.problem(), 1);
  Workspace memory(*world, *inputs);
  memory.bind(op);
  memory.poison_outputs();
  const std::vector<void*> own{nullptr, nullptr};
  EXPECT_THAT([&] { op.enqueue(own); }, ThrowsMessage<InvalidArgument>(HasSubstr("call prepare()")));
  op.prepare();
  EXPECT_THAT([&] { op.enqueue(nullptr); },
              ThrowsMessage<InvalidArgument>(HasSubstr("1 streams for 2 ranks")));
  const std::vector<void*> others{nullptr, &op};
  EXPECT_THAT([&] { op.enqueue(others); }, ThrowsMessage<InvalidArgument>(HasSubstr("pass null")));
  for (int epoch = 0; epoch < 3; ++epoch) op.enqueue(own);
  op.synchronize();
  EXPECT_TRUE(check(*inputs, memory.outputs()).passed);
  op.run();
  op.enqueue(own);
  op.synchronize();
  EXPECT_TRUE(check(*inputs, memory.outputs()).passed);
}

TEST(Operator, TellsShapesAndMemory) {
  const auto world = threads(2);
  Problem problem = problem_of(Op::gemm_reducescatter, 2);
  problem.m = 49;
  problem.transpose_a = true;
  problem.norm = {.enabled = true, .residual = true};
  const Operator op(*world, problem);
  EXPECT_EQ(op.shape(Role::a, 0), (Shape{24, 49}));
  EXPECT_EQ(op.shape(Role::out, 0), (Shape{25, 40}));
  EXPECT_EQ(op.shape(Role::sum, 1), (Shape{24, 40}));
  EXPECT_EQ(op.shape(Role::norm_weight, 1), (Shape{1, 40}));
  EXPECT_EQ(roles_of(problem).size(), 6u);
  EXPECT_GT(op.memory_bytes(0), 0);
}

TEST(Operator, RunsEpochsBackToBackAndTraces) {
  const auto world = threads(2);
  const Problem problem = problem_of(Op::gemm_allreduce, 2);
  const auto inputs = random_inputs(problem, 2);
  Workspace memory(*world, *inputs);
  Operator op(*world, problem);
  memory.bind(op);
  const RunReport report = op.run(3, true);
  EXPECT_GT(report.elapsed_us, 0);
  EXPECT_FALSE(report.spans.empty());
  EXPECT_TRUE(check(*inputs, memory.outputs()).passed);
}

TEST(Measure, ComparesWithTheBaseline) {
  const auto world = threads(2);
  Problem problem = problem_of(Op::gemm_alltoall, 2);
  problem.routing =
      std::make_shared<Routing>(std::vector<std::vector<std::int32_t>>{std::vector<std::int32_t>(48, 1), {}});
  const auto inputs = random_inputs(problem, 3);
  Workspace memory(*world, *inputs);
  GemmAlone gemm(*world, *inputs, memory);
  Operator sequential(*world, problem, {.params = SequentialParams{}});
  Operator chunked(*world, problem, {.params = ChunkedParams{}});
  memory.bind(sequential);
  memory.bind(chunked);
  const Measurement measured = measure(*world, gemm.products(), sequential, chunked, {.repeat = 3});
  EXPECT_EQ(measured.rounds, 3);
  EXPECT_GT(measured.speedup(), 0);
  const Measurement itself = measure(*world, gemm.products(), sequential, sequential, {.repeat = 2});
  EXPECT_EQ(itself.sequential_us, itself.overlapped_us);
}

/// Of attention operators the attention, and the product where there is one; on operands of a rank's size.
TEST(Measure, TimesTheComputationOfAttentionAlone) {
  const auto world = threads(2);
  for (const Op op : {Op::attention_reducescatter, Op::ulysses_attention, Op::allgather_attention,
                      Op::attention_backward}) {
    Problem problem;
    problem.op = op;
    problem.world = 2;
    problem.m = 33;
    problem.attention = {.heads = 4, .kv_heads = 2, .head_dim = 8, .causal = true, .lengths = {20, 13}};
    problem.k = problem.traits().shards_tokens() ? 32 : 16;
    problem.n = problem.traits().shards_tokens() ? 32 : 24;
    problem.attention.returns_lse = op == Op::allgather_attention;
    const auto inputs = random_inputs(problem, 3);
    Workspace memory(*world, *inputs);
    GemmAlone alone(*world, *inputs, memory);
    std::vector<std::string> steps;
    for (const RankPlan& rank : alone.products()[0].plan().ranks)
      for (const Lane& lane : rank.lanes)
        for (const Step& step : lane.steps) steps.emplace_back(name(step));
    const std::vector<std::string> attention{"attend", "attend"}, both{"attend", "gemm", "attend", "gemm"},
        backward{"attend-backward", "attend-backward"};
    EXPECT_EQ(steps, problem.traits().backward ? backward : problem.traits().multiplies() ? both : attention);
    const Step& step = alone.products()[0].plan().ranks[1].lanes[0].steps[0];
    EXPECT_EQ(std::visit(
                  [](const auto& one) -> std::int64_t {
                    if constexpr (requires { one.grid.cols; }) return one.grid.cols;
                    return 0;
                  },
                  step),
              problem.attended_cols());
    EXPECT_GT(alone.products()[0].run().elapsed_us, 0);
    EXPECT_GT(GemmAlone::bytes(problem, 0), 0);
    memory.poison_outputs();
    Operator sequential(*world, problem, {.params = SequentialParams{}});
    memory.bind(sequential);
    sequential.run();  // the inputs are as they were
    EXPECT_TRUE(check(*inputs, memory.outputs()).passed);
  }
}

TEST(Measure, ComputationAloneIsBothProductsOfAnMlp) {
  const auto world = threads(2);
  Problem problem = problem_of(Op::mlp, 2);
  problem.epilogue.activation = Activation::swiglu;
  const auto inputs = random_inputs(problem, 3);
  Workspace memory(*world, *inputs);
  GemmAlone alone(*world, *inputs, memory);
  ASSERT_EQ(alone.products().size(), 2u);
  EXPECT_EQ(describe(alone.products()[0].problem()), "gemm 48x64x24 f32, 2 ranks");
  EXPECT_EQ(describe(alone.products()[1].problem()), "gemm 48x40x32 f32, 2 ranks");
  EXPECT_EQ(GemmAlone::bytes(problem, 0), 4 * (48 * 24 + 48 * 64 + 48 * 32 + 48 * 40));
  for (Operator& product : alone.products()) EXPECT_GT(product.run().elapsed_us, 0);
}

TEST(Measure, CountsEfficiencyFromTheGemmAlone) {
  Measurement m{.gemm_us = 100, .sequential_us = 180, .overlapped_us = 120};
  EXPECT_DOUBLE_EQ(m.overlap_efficiency(), 0.75);
  m.overlapped_us = 200;
  EXPECT_DOUBLE_EQ(m.overlap_efficiency(), -0.25);
  m.sequential_us = 90;
  EXPECT_TRUE(std::isnan(m.overlap_efficiency()));
}

TEST(Registry, RefusesUnknownBackends) {
  EXPECT_THAT([] { make_world(2, {.backend = "abacus"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("unknown backend 'abacus' (one of host, mpi")));
#ifndef SHINGLE_WITH_CUDA
  EXPECT_THAT([] { make_world(2, {.backend = "cuda"}); },
              ThrowsMessage<Unsupported>("this build has no CUDA backend: configure the cuda preset"));
#endif
  EXPECT_EQ(planners().front().mechanism, Mechanism::sequential);
}

}  // namespace
}  // namespace shingle::operator_test
