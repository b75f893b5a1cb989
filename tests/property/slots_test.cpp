// Experts whose tokens are routed on the device: any ids are right, or their drops are counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "api/workspace.hpp"
#include "check/slots.hpp"
#include "planner/common/slot_cut.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"
#include "support/host_runs.hpp"
#include "support/random_problem.hpp"
#include "verify/residency.hpp"

namespace shingle::slots_test {
namespace {

using test::Dice;
using ::testing::HasSubstr;

constexpr Op operators[] = {Op::alltoall_grouped_gemm,  Op::grouped_gemm_alltoall,      Op::moe,
                            Op::allgather_grouped_gemm, Op::grouped_gemm_reducescatter, Op::moe_tp};

/// Experts of up to eight ranks with any capacity, also one that most choices do not fit.
Problem random_slots(Dice& dice, int most_ranks = 8) {
  Problem problem;
  do problem = test::random_problem(dice, {.world = most_ranks, .m = 40, .n = 40, .k = 32});
  while (!problem.traits().grouped || problem.traits().replicates_tokens());
  test::give_capacity(dice, problem, 40);
  return problem;
}

Params random_form(Dice& dice, const Problem& problem) {
  if (test::chance(dice, 25)) return SequentialParams{};
  if (test::chance(dice, 25)) {
    auto signal = std::get<SignalParams>(test::random_params(dice, problem, Mechanism::signal));
    signal.helpers = std::min(signal.helpers, 1);  // of two workers
    for (std::size_t groups = dice.size(0, 4); groups > 0; --groups)
      signal.group_waves.push_back(dice.size(1, 3));
    return signal;
  }
  if (test::chance(dice, 33)) return ChunkedParams{.chunks = static_cast<std::int32_t>(dice.size(1, 9))};
  auto fused = std::get<FusedParams>(test::random_params(dice, problem, Mechanism::fused));
  fused.helpers = test::chance(dice, 30) ? FusedParams::no_helpers : std::min(fused.helpers, 1);  // of two
  return fused;
}

TEST(Slots, AreRightForAnyRouting) {
  Dice dice(11);
  for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Problem problem = random_slots(dice);
    test::expect_right(problem, {random_form(dice, problem)}, test::random_choices(dice, problem));
  }
}

TEST(Slots, SpanSeveralTilesEach) {
  Dice dice(12);
  for (const Op op : operators) {
    Problem problem{.op = op, .world = 2, .n = 24, .k = 40, .experts = {4, 2, 300}};
    if (problem.traits().chains()) problem.inner = 16;
    problem = with_m(problem, 700);
    for (int i = 0; i < 3; ++i) {
      const auto choices = test::random_choices(dice, problem);
      const FusedParams clusters{.tile = {.rows = 32, .cols = 16, .order = {Raster::along_n, 4, 2, 1, 0}}};
      test::expect_right(problem,
                         {SequentialParams{}, ChunkedParams{}, SignalParams{},
                          FusedParams{.tile = {.rows = 64, .cols = 16}}, clusters},
                         choices);
    }
  }
}

TEST(Slots, AreProvenForAnyTilesAndOrder) {
  Dice dice(13);
  for (int i = 0; i < 150; ++i) {
    const Problem problem = random_slots(dice, 6);
    const Machine machine = test::random_machine(dice);
    for (const Mechanism mechanism :
         {Mechanism::sequential, Mechanism::chunked, Mechanism::signal, Mechanism::fused}) {
      const auto plan = make_plan(problem, machine, test::random_params(dice, problem, mechanism));
      if (!plan) continue;  // the machine has too few workers
      ASSERT_NO_FATAL_FAILURE(test::expect_proven(*plan));
    }
  }
}

/// Products whose tiles await messages fill all workers. Where calls take some, plans reserve them.
TEST(Slots, LeaveWorkersToTheirMessages) {
  Dice dice(17);
  int starved = 0;
  for (int i = 0; i < 100; ++i) {
    const Problem problem = random_slots(dice, 6);
    for (const std::int32_t taken : {0, 1, 3}) {
      Machine machine = test::random_machine(dice);
      machine.workers = 4, machine.collective_workers = taken;
      for (const Mechanism mechanism : {Mechanism::sequential, Mechanism::chunked, Mechanism::signal}) {
        const Plan plan = make_plan(problem, machine, default_params(mechanism)).value();
        const auto why = starved_call(plan);
        EXPECT_FALSE(why && (taken > 0 || mechanism != Mechanism::signal)) << why.value_or("") << "\n"
                                                                           << describe(problem) << "\n"
                                                                           << to_text(plan);
        starved += why ? 1 : 0;
      }
    }
  }
  EXPECT_GT(starved, 10) << "by signal, where calls take no workers";
}

/// Results of a problem, as bytes.
std::vector<std::byte> results_of(const Problem& problem, const Params& params,
                                  std::shared_ptr<const Routing> choices, Role role = Role::out) {
  const auto world = make_world(problem.world, {.backend = "host", .workers_per_rank = 2});
  const auto inputs = random_inputs(problem, 3, Values::integers, std::move(choices));
  Operator op(*world, problem, {.params = params});
  Workspace memory(*world, *inputs);
  memory.bind(op);
  op.run();
  std::vector<std::byte> all;
  for (const Output& output : memory.outputs())
    if (output.role == role) {
      const auto* const bytes = static_cast<const std::byte*>(output.memory);
      all.insert(all.end(), bytes, bytes + bytes_of(problem, role, output.rank));
    }
  return all;
}

TEST(Slots, GiveTheBitsOfARoutingThatTheHostKnows) {
  Dice dice(14);
  for (int i = 0; i < 30; ++i) {
    Problem known{.op = i % 2 == 0 ? Op::moe : Op::moe_tp,
                  .world = static_cast<int>(dice.size(1, 4)),
                  .n = 24,
                  .k = 16,
                  .inner = 12};
    known.experts = {4 * known.world, 2};
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(known.world));
    for (auto& rows : dest)
      for (int row = 0; row < 2 * 20; ++row)
        rows.push_back(static_cast<std::int32_t>(dice.size(0, known.experts.count - 1)));
    known.m = 20;
    const auto choices = std::make_shared<const Routing>(Routing::to_experts(dest, known.experts.count));
    known.routing = std::make_shared<const Routing>(
        Routing::to_experts(std::move(dest), known.experts.count, known.traits().expert_split()));
    Problem slots = known;
    slots.experts.capacity = 40;
    slots = with_m(slots, known.m);
    for (const Params& params : {Params(SequentialParams{}), Params(ChunkedParams{.chunks = 3}),
                                 Params(SignalParams{.group_waves = {2, 1}}), Params(FusedParams{})})
      EXPECT_EQ(results_of(slots, params, choices), results_of(known, params, {}));
  }
}

TEST(Slots, CountWhatIsDropped) {
  // Experts 0 to 3 of two ranks, two slots each: rank 0 sends all to expert 1, rank 1 an id that is none.
  Problem problem{.op = Op::moe, .world = 2, .n = 8, .k = 8, .inner = 8, .experts = {4, 1, 2}};
  problem = with_m(problem, 5);
  const auto choices = std::make_shared<const Routing>(Routing::to_experts({{1, 1, 1, 1, 1}, {0, 3}}, 4));
  const auto inputs = random_inputs(problem, 1, Values::integers, choices);
  EXPECT_EQ(wanted_numbers(*inputs, Role::dropped, 0), (std::vector<std::int32_t>{3, 0}));
  EXPECT_EQ(wanted_numbers(*inputs, Role::dropped, 1), (std::vector<std::int32_t>{0, 0}));
  const auto world = make_world(2, {.backend = "host"});
  for (const Params& params : {Params(SequentialParams{}), Params(FusedParams{})}) {
    Operator op(*world, problem, {.params = params});
    Workspace memory(*world, *inputs);
    auto* const ids = static_cast<std::int32_t*>(const_cast<void*>(memory.data(1, Role::topk_ids)));
    ids[1] = 4, ids[2] = -7;
    memory.bind(op);
    memory.poison_outputs();
    op.run();
    const auto dropped = [&](int rank) {
      const auto* const at = static_cast<const std::int32_t*>(memory.data(rank, Role::dropped));
      return std::vector<std::int32_t>(at, at + 2);
    };
    EXPECT_EQ(dropped(0), (std::vector<std::int32_t>{3, 0}));
    EXPECT_EQ(dropped(1), (std::vector<std::int32_t>{0, 2}));
    const auto* const out = static_cast<const float*>(memory.data(1, Role::out));
    for (int col = 8; col < 5 * 8; ++col)
      EXPECT_EQ(out[col], 0) << "a token without an expert, element " << col;
  }
}

/// Matrices of a call in which each rank has its own number of tokens.
struct Call {
  std::unique_ptr<Inputs> inputs;
  std::unique_ptr<Workspace> memory;
  std::vector<std::int64_t> tokens;

  std::vector<Argument> arguments() const {
    const Problem& problem = inputs->problem();
    std::vector<Argument> all = memory->arguments(problem);
    for (Argument& one : all)
      if (counts_tokens(problem, one.role))
        one.matrix.shape.rows = tokens[static_cast<std::size_t>(one.rank)];
    return all;
  }
};

/// True if the bytes behind the rows that a rank has are all set, as they were before the call.
bool left_alone(const Call& call, int rank) {
  const Problem& problem = call.inputs->problem();
  if (!problem.traits().combines()) return true;
  const auto* const bytes = static_cast<const unsigned char*>(call.memory->data(rank, Role::out));
  const std::int64_t all = bytes_of(problem, Role::out, rank);
  const std::int64_t used = all / problem.m * call.tokens[static_cast<std::size_t>(rank)];
  return std::all_of(bytes + used, bytes + all, [](unsigned char byte) { return byte == 0xff; });
}

TEST(Slots, OnePlanServesAnyRouting) {
  Dice dice(15);
  for (const Op op : operators)
    for (const Params& params : {Params(SequentialParams{}), Params(ChunkedParams{}), Params(SignalParams{}),
                                 Params(FusedParams{.helpers = 1})}) {
      Problem problem{.op = op, .world = 4, .n = 16, .k = 24, .experts = {8, 2, 6}};
      if (problem.traits().chains()) problem.inner = 12;
      problem = with_m(problem, 20);
      const auto world = make_world(4, {.backend = "host", .workers_per_rank = 2});
      Context context(*world, {.verify = true});
      const int declared = context.declare(problem, {params});
      const Plan* const plan = &context.plan(declared, problem.m);
      std::vector<Call> calls;
      for (int i = 0; i < 100; ++i) {
        const auto choices = test::random_choices(dice, problem);
        Call& call = calls.emplace_back();
        call.inputs = random_inputs(problem, static_cast<std::uint64_t>(i), Values::normal, choices);
        call.memory = std::make_unique<Workspace>(*world, *call.inputs);
        call.memory->poison_outputs();
        for (int rank = 0; rank < 4; ++rank) {
          call.tokens.push_back(choices->rows(rank) / problem.experts.topk);
          // Matrices end with the last token: what lies behind belongs to others.
          for (const Role role : {Role::topk_ids, Role::a}) {
            if (!counts_tokens(problem, role)) continue;
            auto* const at = static_cast<std::byte*>(const_cast<void*>(call.memory->data(rank, role)));
            const std::int64_t all = bytes_of(problem, role, rank);
            const std::int64_t used = all / problem.m * call.tokens.back();
            std::memset(at + used, role == Role::a ? 0xff : 0, static_cast<std::size_t>(all - used));
          }
        }
        context.call(declared, problem.m, call.arguments());
      }
      context.synchronize();
      EXPECT_EQ(&context.plan(declared, problem.m), plan);
      for (const Call& call : calls) {
        for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(left_alone(call, rank));
        // The reference has rows of zeros for tokens that no rank has.
        if (problem.traits().combines())
          for (int rank = 0; rank < 4; ++rank) {
            auto* const out = static_cast<std::byte*>(const_cast<void*>(call.memory->data(rank, Role::out)));
            const std::int64_t all = bytes_of(problem, Role::out, rank);
            const std::int64_t used = all / problem.m * call.tokens[static_cast<std::size_t>(rank)];
            std::memset(out + used, 0, static_cast<std::size_t>(all - used));
          }
        const Check result = check(*call.inputs, call.memory->outputs());
        EXPECT_TRUE(result.passed) << describe(problem) << ": " << result.max_error << " at " << result.worst;
      }
    }
}

TEST(Slots, TakeMatricesOfAsManyTokensEach) {
  Problem problem{.op = Op::moe, .world = 1, .n = 8, .k = 8, .inner = 8, .experts = {2, 1, 2}};
  problem = with_m(problem, 4);
  const auto world = make_world(1, {.backend = "host"});
  Context context(*world, {});
  const int op = context.declare(problem);
  const auto inputs = random_inputs(problem, 1);
  Workspace memory(*world, *inputs);
  const auto call = [&](Role role, std::int64_t rows) {
    std::vector<Argument> all = memory.arguments(problem);
    for (Argument& one : all)
      if (one.role == role) one.matrix.shape.rows = rows;
    context.call(op, problem.m, all);
  };
  const auto refuses = [&](Role role, std::int64_t rows, const std::string& why) {
    EXPECT_THAT([&] { call(role, rows); }, ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refuses(Role::a, 3, "matrix 'a' of rank 0: 3 rows given, but topk_ids has 4");
  refuses(Role::topk_ids, 3, "4 rows given, but topk_ids has 3");
  refuses(Role::topk_ids, 5, "5x1 i32 given, expected 4x1 i32");
  refuses(Role::dropped, 0, "0x2 i32 given, expected 1x2 i32");
  EXPECT_THAT([&] { context.call(op, problem.routing, memory.arguments(problem)); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("routes on the device")));
  call(Role::a, 4);
  context.synchronize();
}

TEST(Slots, RefuseWhatTheyDoNotHave) {
  const auto refused = [](const std::string& why, const std::function<void(Problem&)>& edit) {
    Problem problem{.op = Op::moe, .world = 2, .n = 8, .k = 8, .inner = 8, .experts = {4, 2, 3}};
    problem = with_m(problem, 6);
    EXPECT_NO_THROW(problem.validate());
    edit(problem);
    EXPECT_THAT([&] { problem.validate(); }, ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused("the routing has 3 slots for each expert, the operator a capacity of 4",
          [](Problem& p) { p.experts.capacity = 4; });
  refused("the routing has 3 slots for each expert, the operator a capacity of 0",
          [](Problem& p) { p.experts.capacity = 0; });
  refused("capacity = -1 must not be negative", [](Problem& p) { p.experts.capacity = -1; });
  refused("m = 0 is outside [1, 2147483647]", [](Problem& p) { p.m = 0; });
  refused("dtype = i32 is not f32, bf16 or f16", [](Problem& p) { p.dtype = DType::i32; });
  const Problem problem =
      with_m({.op = Op::moe, .world = 2, .n = 8, .k = 8, .inner = 8, .experts = {4, 2, 3}}, 6);
  const auto ring = plan_ring(problem, {}, {});
  ASSERT_FALSE(ring);
  const auto shares = plan_signal(problem, {}, {.group_waves = {1, INT64_MAX}});
  ASSERT_FALSE(shares);
  EXPECT_THAT(shares.reason(), HasSubstr("add up to more than 2^31"));
  EXPECT_THAT(ring.reason(),
              HasSubstr("ring does not plan grouped products: use sequential, chunked, signal or fused"));
}

TEST(Slots, AreCutAlikeOnAllRanks) {
  for (const auto& [world, per_rank, capacity, chunks] :
       {std::array<int, 4>{1, 3, 2, 2}, {2, 1, 5, 4}, {3, 4, 2, 5}, {4, 2, 1, 100}, {8, 1, 3, 3}}) {
    const Routing routing = Routing::slots(world, world * per_rank, capacity);
    const planner::SlotCut cut(routing, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 1));
    EXPECT_EQ(cut.chunks(), std::min(chunks, world * per_rank));
    for (int rank = 0; rank < world; ++rank) {
      std::vector<int> held(static_cast<std::size_t>(cut.held_rows()), 0), runs(held), sent(held), in(held);
      for (std::int64_t chunk = 0; chunk < cut.chunks(); ++chunk) {
        std::int64_t rows = 0;
        std::vector<std::int64_t> of_source(static_cast<std::size_t>(world), 0), got(of_source);
        for (const auto& run : cut.runs(rank, chunk)) {
          for (int i = 0; i < capacity; ++i) ++runs[static_cast<std::size_t>(run.row + i)];
          of_source[static_cast<std::size_t>(run.source)] += run.source == rank ? 0 : capacity;
          rows += capacity;
          if (run.source != rank) continue;
          EXPECT_EQ(run.row, (rank * per_rank + run.weight) * capacity);
        }
        EXPECT_LE(std::abs(rows - world * per_rank * capacity / cut.chunks()), capacity);
        for (const auto& part : cut.received(rank, chunk)) {
          got[static_cast<std::size_t>(part.peer)] += part.rows;
          for (std::int64_t i = 0; i < part.rows; ++i) ++in[static_cast<std::size_t>(part.row + i)];
          // The peer sends the slots of the same runs.
          std::vector<std::int64_t> slots;
          for (const auto& of : cut.sent(part.peer, chunk))
            if (of.peer == rank)
              for (std::int64_t i = 0; i < of.rows; ++i) slots.push_back(of.row + i);
          ASSERT_EQ(static_cast<std::int64_t>(slots.size()), part.rows);
          for (const auto& run : cut.runs(rank, chunk)) {
            if (run.source != part.peer) continue;
            EXPECT_EQ(slots[static_cast<std::size_t>(run.row - part.row)],
                      (rank * per_rank + run.weight) * capacity);
          }
        }
        EXPECT_EQ(got, of_source);
        for (const auto& part : cut.sent(rank, chunk))
          for (std::int64_t i = 0; i < part.rows; ++i) ++sent[static_cast<std::size_t>(part.row + i)];
      }
      for (std::int64_t row = 0; row < cut.held_rows(); ++row) {
        const bool slot = row < routing.rows(rank),
                   own = slot && routing.rank_of(routing.dest(rank, row)) == rank;
        const auto at = static_cast<std::size_t>(row);
        EXPECT_EQ(runs[at], own || !slot) << row;
        EXPECT_EQ(sent[at], slot && !own) << row;
        EXPECT_EQ(in[at], !slot) << row;
      }
    }
  }
}

TEST(Slots, ArePushedByWorkers) {
  for (const Op op : {Op::moe, Op::moe_tp}) {
    const Problem problem =
        with_m({.op = op, .world = 2, .n = 8, .k = 8, .inner = 8, .experts = {4, 2, 3}}, 6);
    const Plan plan = plan_fused(problem, {}, {.comm_rows = 4, .mover = Mover::copy_engine}).value();
    const auto params = std::get<FusedParams>(params_of(plan));
    EXPECT_EQ(params.mover, Mover::store);
    EXPECT_EQ(params.comm_rows, 0);
    for (const RankPlan& rank : plan.ranks)
      for (const Lane& lane : rank.lanes) EXPECT_EQ(lane.kind, LaneKind::compute) << lane.name;
  }
}

/// A token goes to slots that only the device knows, so groups have all tokens of a rank.
TEST(Slots, OfSlicedExpertsGoByWholeRanks) {
  const Problem problem =
      with_m({.op = Op::moe_tp, .world = 4, .n = 8, .k = 8, .inner = 8, .experts = {5, 2, 3}}, 6);
  const auto groups = [&](std::vector<std::int64_t> shares) {
    const Plan plan = plan_signal(problem, {}, {.group_waves = std::move(shares)}).value();
    return std::get<SignalParams>(params_of(plan)).group_waves;
  };
  EXPECT_EQ(groups({2, 6}), (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(groups({1, 1, 1}), (std::vector<std::int64_t>{1, 1, 2}));
  EXPECT_EQ(groups({1, 1, 1, 1, 1, 1, 1, 1}), (std::vector<std::int64_t>{1, 1, 1, 1}));
}

TEST(Slots, NeedNoMoreThanTheTokensOfACall) {
  const Problem problem =
      with_m({.op = Op::moe, .world = 2, .n = 8, .k = 8, .inner = 8, .experts = {4, 2, 64}}, 100);
  EXPECT_EQ(problem.experts.capacity, 64);
  EXPECT_EQ(with_m(problem, 5).experts.capacity, 10);
  EXPECT_EQ(with_m(problem, 5).routing->rows(0), 40);
}

}  // namespace
}  // namespace shingle::slots_test
