// Products of a mixture of experts, whatever its routing: plans are proven, results right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shingle/base/error.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/planner/planner.hpp"
#include "support/host_runs.hpp"
#include "support/random_problem.hpp"

namespace shingle::experts_test {
namespace {

using test::Dice;
using ::testing::HasSubstr;

constexpr std::initializer_list<Op> by_expert{Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe},
    by_slice{Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};

std::vector<Op> any_split() {
  std::vector<Op> ops(by_expert);
  ops.insert(ops.end(), by_slice);
  return ops;
}

std::vector<Params> forms(Dice& dice, const Problem& problem) {
  auto fused = std::get<FusedParams>(test::random_params(dice, problem, Mechanism::fused));
  auto signal = std::get<SignalParams>(test::random_params(dice, problem, Mechanism::signal));
  fused.helpers = std::min(fused.helpers, 1);  // of two workers
  signal.helpers = std::min(signal.helpers, 1);
  std::vector<Params> params{SequentialParams{},
                             ChunkedParams{},
                             ChunkedParams{.chunks = 8},
                             test::random_params(dice, problem, Mechanism::chunked),
                             SignalParams{},
                             SignalParams{.tile = {.rows = 16, .cols = 8}, .group_waves = {2, 1, 4}},
                             signal,
                             FusedParams{},
                             FusedParams{.mover = Mover::copy_engine},
                             FusedParams{.mover = Mover::store},
                             FusedParams{.helpers = 1, .mover = Mover::store},
                             FusedParams{.helpers = FusedParams::no_helpers, .mover = Mover::store},
                             fused};
  if (problem.traits().slices_experts())
    for (const std::int32_t helpers : {1, FusedParams::no_helpers})
      params.emplace_back(SignalParams{.group_waves = {1, 3, 1, 1, 5}, .helpers = helpers});
  return params;
}

Problem random_experts(Dice& dice, const test::Limits& limits) {
  Problem problem;
  do problem = test::random_problem(dice, limits);
  while (!problem.traits().grouped || problem.traits().replicates_tokens());
  return problem;
}
Problem random_experts(Dice& dice, const test::Limits& limits, ExpertSplit split) {
  Problem problem;
  do problem = random_experts(dice, limits);
  while (problem.traits().expert_split() != split);
  return problem;
}

Problem experts(Op op, int world, std::vector<std::vector<std::int32_t>> dest, Experts of) {
  Problem problem{.op = op, .world = world, .n = 24, .k = 40};
  problem.experts = of;
  problem.routing = std::make_shared<const Routing>(
      Routing::to_experts(std::move(dest), of.count, problem.traits().expert_split()));
  if (problem.traits().chains()) problem.inner = 16;
  for (int rank = 0; rank < world; ++rank)
    problem.m = larger(problem.m, problem.routing->rows(rank) / of.topk);
  return problem;
}

/// Tiles that pad a group to a whole cluster.
int empty_tiles(const Plan& plan) {
  int found = 0;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* const product = std::get_if<Gemm>(&step))
          for (std::int64_t m = 0; m < product->grid.tiles_m(); ++m)
            found += product_tile(*product, {m, 0}).rect.rows == 0;
  return found;
}

TEST(Experts, AreRightForAnyRoutingAndRanks) {
  Dice dice(5);
  for (int i = 0; i < 60; ++i) {
    const Problem problem = random_experts(dice, {.world = 8, .m = 90, .n = 60, .k = 40});
    test::expect_right(problem, forms(dice, problem));
  }
}

TEST(Experts, SpanSeveralTilesEach) {
  Dice dice(6);
  for (const Op op : any_split()) {
    std::vector<std::vector<std::int32_t>> dest(2);
    for (auto& rows : dest)
      for (int row = 0; row < 1400; ++row) rows.push_back(static_cast<std::int32_t>(dice.size(0, 3)));
    const Problem problem = experts(op, 2, std::move(dest), {4, 2});
    test::expect_right(
        problem, {SequentialParams{}, ChunkedParams{.chunks = 3}, SignalParams{.group_waves = {3, 2, 1}},
                  FusedParams{.tile = {.rows = 64, .cols = 16}}});
    const FusedParams clusters{.tile = {.rows = 24, .cols = 16, .order = {Raster::along_n, 4, 2, 1, 0}}};
    test::expect_right(problem, {clusters});
    EXPECT_GT(empty_tiles(plan_fused(problem, {}, clusters).value()), 0);
  }
}

TEST(Experts, WithoutRowsForSomeOrAll) {
  for (const Op op : any_split()) {
    const auto right = [&](std::vector<std::vector<std::int32_t>> dest) {
      const Problem problem = experts(op, 2, std::move(dest), {4, 2});
      test::expect_right(problem,
                         {SequentialParams{}, ChunkedParams{.chunks = 2}, SignalParams{}, FusedParams{}});
    };
    right({{3, 3, 3, 3}, {3, 3}});  // all to one, and the same expert twice for a token
    right({{}, {0, 2}});
    right({{}, {}});
    right({{1, 0}, {0, 1}});  // a rank without rows
  }
}

TEST(Experts, AreProvenForAnyTilesAndOrder) {
  Dice dice(8);
  for (int i = 0; i < 150; ++i) {
    const Problem problem = random_experts(dice, {.world = 6, .m = 60});
    const Machine machine = test::random_machine(dice);
    for (const Mechanism mechanism :
         {Mechanism::sequential, Mechanism::chunked, Mechanism::signal, Mechanism::fused}) {
      const auto plan = make_plan(problem, machine, test::random_params(dice, problem, mechanism));
      if (!plan) continue;  // the machine has too few workers
      ASSERT_NO_FATAL_FAILURE(test::expect_proven(*plan));
    }
  }
}

/// Tiles along m of all products of a rank.
std::int64_t tiles_of(const Plan& plan, int rank) {
  std::int64_t tiles = 0;
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (const Step& step : lane.steps)
      if (const auto* const product = std::get_if<Gemm>(&step)) tiles += product->grid.tiles_m();
  return tiles;
}

/// Rows of a buffer on a rank; 0 without such a buffer.
std::int64_t rows_of(const Plan& plan, std::string_view name, int rank) {
  for (const Buffer& buffer : plan.buffers)
    if (buffer.name == name) return buffer.rows[static_cast<std::size_t>(rank)];
  return 0;
}

TEST(Experts, NeedNoMoreTilesInChunks) {
  Dice dice(9);
  for (int i = 0; i < 100; ++i) {
    const Problem problem = random_experts(dice, {.world = 6, .m = 200}, ExpertSplit::by_expert);
    Machine machine = test::random_machine(dice);
    machine.workers = machine.collective_workers + 1;
    const Plan whole = plan_sequential(problem, machine, {}).value();
    for (const std::int32_t chunks : {1, 2, 5, 40}) {
      const Plan plan = plan_chunked(problem, machine, {.chunks = chunks}).value();
      for (int rank = 0; rank < problem.world; ++rank) {
        EXPECT_EQ(tiles_of(plan, rank), tiles_of(whole, rank));
        EXPECT_LE(rows_of(plan, "hidden", rank), rows_of(whole, "hidden", rank));
      }
    }
  }
}

TEST(Experts, ChunksHaveAboutEquallyManyTiles) {
  Dice dice(10);
  std::vector<std::vector<std::int32_t>> dest(4);
  for (auto& rows : dest)
    for (int row = 0; row < 2000; ++row) rows.push_back(static_cast<std::int32_t>(dice.size(0, 7)));
  const Problem problem = experts(Op::alltoall_grouped_gemm, 4, std::move(dest), {8, 2});
  Machine machine;
  machine.tile_rows = 16;
  const Plan plan = plan_chunked(problem, machine, {.chunks = 4}).value();
  for (const RankPlan& rank : plan.ranks) {
    std::vector<std::int64_t> tiles;
    for (const Lane& lane : rank.lanes)
      for (const Step& step : lane.steps)
        if (const auto* const product = std::get_if<Gemm>(&step)) tiles.push_back(product->grid.tiles_m());
    ASSERT_EQ(tiles.size(), 4u);
    EXPECT_LE(std::ranges::max(tiles) - std::ranges::min(tiles), 1);
  }
}

/// Elements that a rank stores on other ranks, in rows of so many columns.
std::int64_t sent_elements(const Plan& plan, int rank, std::int64_t cols) {
  std::int64_t elements = 0;
  std::set<std::int32_t> queues;
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (const Step& step : lane.steps) {
      if (const auto* const copy = std::get_if<Copy>(&step); copy && copy->to.rank != rank)
        elements += copy->to.cols == cols ? copy->to.rows * cols : 0;
      if (const auto* const exchange = std::get_if<Exchange>(&step))
        for (const Exchange::Message& message : exchange->sends)
          elements += message.slice.cols == cols ? message.slice.rows * cols : 0;
      const auto* const pass = std::get_if<Elementwise>(&step);
      const bool shared = pass != nullptr && pass->queue >= 0 && !queues.insert(pass->queue).second;
      if (pass != nullptr && !shared && pass->to.slice.rank != rank && pass->grid.cols == cols)
        elements += pass->grid.rows * cols * larger(std::ssize(replicas(pass->to)), std::ptrdiff_t{1});
    }
  return elements;
}

TEST(Experts, SlicedOnesSendATokenOnceAndItsSumOnce) {
  Dice dice(11);
  for (int i = 0; i < 100; ++i) {
    Problem problem = random_experts(dice, {.world = 6, .m = 200}, ExpertSplit::by_slice);
    if (problem.n == problem.k || problem.experts.topk == problem.n || problem.experts.topk == problem.k)
      continue;  // matrices are told apart by their columns
    const Mover movers[] = {Mover::copy_engine, Mover::store, Mover::automatic};
    const Plan plan = i % 5 < 3    ? plan_fused(problem, {}, {.mover = movers[i % 5]}).value()
                      : i % 5 == 3 ? plan_chunked(problem, {}, {.chunks = i % 8}).value()
                                   : plan_signal(problem, {}, {.group_waves = {1 + i % 3, 1, 2}}).value();
    const auto tokens = [&](int rank) { return problem.routing->rows(rank) / problem.experts.topk; };
    std::int64_t all = 0;
    for (int rank = 0; rank < problem.world; ++rank) all += tokens(rank);
    for (int rank = 0; rank < problem.world; ++rank) {
      const std::int64_t to = problem.world - 1;
      EXPECT_EQ(sent_elements(plan, rank, problem.k),
                problem.traits().before ? to * tokens(rank) * problem.k : 0);
      EXPECT_EQ(sent_elements(plan, rank, problem.n),
                problem.traits().after ? (all - tokens(rank)) * problem.n : 0);
    }
  }
}

TEST(Experts, SlicedOnesNeedNoMoreTilesWhenTokensArriveInTurn) {
  Dice dice(12);
  for (int i = 0; i < 100; ++i) {
    const Problem problem = random_experts(dice, {.world = 6, .m = 200}, ExpertSplit::by_slice);
    Machine machine;
    machine.tile_rows = static_cast<std::int32_t>(dice.size(8, 64));
    const Plan whole = plan_sequential(problem, machine, {}).value();
    for (const Plan& plan : {plan_fused(problem, machine, {}).value(),
                             plan_chunked(problem, machine, {.chunks = 1 + i % 7}).value(),
                             plan_signal(problem, machine, {.group_waves = {1, 1 + i % 4, 2}}).value()})
      for (int rank = 0; rank < problem.world; ++rank)
        EXPECT_EQ(tiles_of(plan, rank), tiles_of(whole, rank)) << name(plan.mechanism);
  }
}

/// The bytes of all outputs.
std::vector<std::vector<char>> results_of(const Problem& problem, const Params& params) {
  const auto world = make_world(problem.world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(problem, 7);
  Operator op(*world, problem, {.params = params});
  Workspace memory(*world, *inputs);
  memory.bind(op);
  op.run();
  std::vector<std::vector<char>> results;
  for (const Output& output : memory.outputs()) {
    const Shape shape = shape_of(problem, output.role, output.rank);
    const auto* const at = static_cast<const char*>(output.memory);
    results.emplace_back(at,
                         at + shape.rows * shape.cols * static_cast<std::int64_t>(size_bytes(problem.dtype)));
  }
  return results;
}

TEST(Experts, SlicedOnesHaveTheSameBitsBySignalAndInChunks) {
  Dice dice(14);
  for (int i = 0; i < 40; ++i) {
    Problem problem = random_experts(dice, {.world = 6, .m = 60}, ExpertSplit::by_slice);
    problem.dtype = DType::bf16;
    const auto expected = results_of(problem, ChunkedParams{});
    for (const std::int32_t helpers : {1, FusedParams::no_helpers})
      EXPECT_EQ(results_of(problem, SignalParams{.group_waves = {2, 1, 1, 3}, .helpers = helpers}), expected)
          << describe(problem);
  }
}

/// Products of a rank.
std::ptrdiff_t products_of(const Plan& plan, int rank) {
  std::ptrdiff_t products = 0;
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    products +=
        std::ranges::count_if(lane.steps, [](const Step& s) { return std::holds_alternative<Gemm>(s); });
  return products;
}

TEST(Experts, SlicedOnesHaveNoMoreChunksThanAnExpertHasTiles) {
  const auto plan = [](std::size_t rows, std::int32_t chunks) {
    Machine machine;
    machine.tile_rows = 64;
    std::vector<std::int32_t> dest;
    for (std::size_t row = 0; row < rows; ++row) dest.push_back(static_cast<std::int32_t>(row % 4));
    const Problem problem = experts(Op::allgather_grouped_gemm, 8, {8, dest}, {4, 2});
    return plan_chunked(problem, machine, {.chunks = chunks}).value();
  };
  const auto chosen = [&](std::size_t rows) {
    return std::get<ChunkedParams>(params_of(plan(rows, 0))).chunks;
  };
  // 8 ranks have rows/4 of an expert each, which are rows/32 tiles.
  EXPECT_EQ(chosen(32), 1);
  EXPECT_EQ(chosen(64), 2);
  EXPECT_EQ(chosen(126), 3);
  EXPECT_EQ(chosen(1024), 4);
  EXPECT_EQ(products_of(plan(1024, 0), 3), 4);
  EXPECT_EQ(products_of(plan(1024, 100), 3), 8);
}

TEST(Experts, SlicedOnesHaveGroupsThatAreWorthTheirLatency) {
  const auto groups = [](int world, double latency_us, std::int32_t helpers) {
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world),
                                                std::vector<std::int32_t>(2000, 1));
    const Problem problem = experts(Op::moe_tp, world, std::move(dest), {4, 2});
    Machine machine;
    machine.workers = 64;
    machine.link = {1, latency_us};  // a rank's tokens take 160 us
    const Plan plan = plan_signal(problem, machine, {.helpers = helpers}).value();
    return std::get<SignalParams>(params_of(plan)).group_waves;
  };
  using Shares = std::vector<std::int64_t>;
  EXPECT_EQ(groups(2, 1, 0), (Shares{8, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(groups(2, 4, 2), (Shares{3, 1, 1, 1}));
  EXPECT_EQ(groups(3, 20, 0), (Shares{1, 1, 1}));
  EXPECT_EQ(groups(3, 1, FusedParams::no_helpers), (Shares{1, 2}));
  EXPECT_EQ(groups(1, 1, 0), (Shares{1}));
}

TEST(Experts, SlicedOnesHaveNoMoreGroupsThanQueues) {
  const Problem problem = experts(Op::moe_tp, 2, {{0, 1}, {1, 2}}, {4, 1});
  const auto plan = [&](std::size_t groups) {
    return plan_signal(problem, {}, {.group_waves = std::vector<std::int64_t>(groups, 1)});
  };
  EXPECT_TRUE(plan(512));
  EXPECT_THAT(plan(513).reason(), HasSubstr("513 groups of tensor-parallel experts are more than 512"));
}

TEST(Experts, RefuseWhatTheyDoNotHave) {
  const auto refused = [](const std::string& why, const std::function<void(Problem&)>& edit) {
    Problem problem = experts(Op::moe, 2, {{0, 3}, {1, 2}}, {4, 2});
    EXPECT_NO_THROW(problem.validate());
    edit(problem);
    EXPECT_THAT([&] { problem.validate(); }, ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused("5 experts do not divide among 2 ranks", [](Problem& p) { p.experts.count = 5; });
  refused("topk = 5 is outside [1, 4]", [](Problem& p) { p.experts.topk = 5; });
  refused("the routing has 4 experts, the operator 6", [](Problem& p) { p.experts.count = 6; });
  refused("rank 0 routes 2 rows, which is no multiple of topk = 3", [](Problem& p) { p.experts.topk = 3; });
  refused("m = 2, but the routing's largest rank has 1 tokens", [](Problem& p) { p.m = 2; });
  refused("takes no transposed A, bias or norm", [](Problem& p) { p.epilogue.bias = true; });
  refused("takes no transposed A, bias or norm", [](Problem& p) { p.norm.enabled = true; });
  refused("sends rows to ranks, but the routing has experts",
          [](Problem& p) { p.op = Op::alltoall_gemm, p.experts = {}, p.inner = 0, p.m = 2; });
  refused("has no experts", [](Problem& p) { p.op = Op::gemm, p.routing = nullptr, p.inner = 0; });
  refused("moe-tp has a slice of every expert on each rank: its routing must be split by slice",
          [](Problem& p) { p.op = Op::moe_tp; });
  refused("moe has a part of the experts on each rank: its routing must be split by expert", [](Problem& p) {
    p.routing = std::make_shared<const Routing>(
        Routing::to_experts(p.routing->table(), p.experts.count, ExpertSplit::by_slice));
  });
  refused("0 experts; moe needs at least 1", [](Problem& p) { p.experts.count = 0; });
  refused("it sums products", [](Problem& p) {
    p.op = Op::grouped_gemm_alltoall, p.inner = 0, p.epilogue.activation = Activation::silu;
  });
}

}  // namespace
}  // namespace shingle::experts_test
