// Experts whose tokens are routed on the device: the slots of the kernel, and one graph for any routing.
#include <gtest/gtest.h>

#include <functional>

#ifdef SHINGLE_WITH_CUDA

#include "asynchronous.hpp"
#include "cuda/kernels/assign_slots.hpp"
#include "cuda/kernels/merge_slots.hpp"
#include "cuda/raii/graph.hpp"
#include "device.hpp"
#include "shingle/api/context.hpp"
#include "shingle/base/error.hpp"
#include "support/random_problem.hpp"

namespace shingle::cuda::test {
namespace {

using shingle::test::Dice;

/// Results of the kernel, as it and as plan.hpp gives them.
struct Assigned {
  std::vector<std::int32_t> row_of, slot_of, counts, dropped;
  bool operator==(const Assigned&) const = default;
};

Assigned by_hand(const AssignSlotsArgs& args, const std::vector<std::int32_t>& ids) {
  Assigned all;
  all.row_of.assign(static_cast<std::size_t>(args.experts) * args.capacity, -1);
  all.slot_of.assign(static_cast<std::size_t>(args.most_tokens) * args.choices, -2);
  all.counts.assign(static_cast<std::size_t>(args.experts), 0);
  all.dropped.assign(2, 0);
  for (int choice = 0; choice < args.choices; ++choice)
    for (int token = 0; token < args.tokens; ++token) {
      const auto at = static_cast<std::size_t>(token * args.choices + choice);
      const std::int32_t id = ids[at];
      all.slot_of[at] = -1;
      if (id < 0 || id >= args.experts) {
        all.dropped[1] += id != -1;
        continue;
      }
      std::int32_t& count = all.counts[static_cast<std::size_t>(id)];
      if (count == args.capacity) {
        ++all.dropped[0];
        continue;
      }
      all.slot_of[at] = id * args.capacity + count++;
      all.row_of[static_cast<std::size_t>(all.slot_of[at])] = token;
    }
  return all;
}

TEST(AssignSlots, TakesChoicesInOrder) {
  if (!gpu_here()) GTEST_SKIP() << "no GPU";
  Dice dice(1);
  for (int i = 0; i < 300; ++i) {
    AssignSlotsArgs args;
    args.most_tokens = static_cast<std::int32_t>(dice.size(1, i % 10 == 0 ? 9000 : 700));
    args.tokens = static_cast<std::int32_t>(dice.size(0, args.most_tokens));
    args.choices = static_cast<std::int32_t>(dice.size(1, i % 20 == 0 ? most_choices : 9));
    args.experts = static_cast<std::int32_t>(dice.size(1, i % 30 == 0 ? 2000 : 40));
    args.capacity =
        static_cast<std::int32_t>(dice.size(1, 2 * args.most_tokens * args.choices / args.experts + 1));
    std::vector<std::int32_t> ids;
    const auto favourite = static_cast<std::int32_t>(dice.size(0, args.experts - 1));
    for (std::int64_t at = 0; at < std::int64_t{args.tokens} * args.choices; ++at)
      ids.push_back(i % 3 == 0 ? favourite : static_cast<std::int32_t>(dice.size(-2, args.experts)));
    const Assigned wanted = by_hand(args, ids);
    const DeviceMemory from = upload(ids);
    std::vector<DeviceMemory> to;
    for (const auto* one : {&wanted.row_of, &wanted.slot_of, &wanted.counts, &wanted.dropped})
      to.push_back(upload(std::vector<std::int32_t>(one->size(), 7)));
    args.ids = from.get<std::int32_t>();
    args.row_of = to[0].get<std::int32_t>(), args.slot_of = to[1].get<std::int32_t>();
    args.counts = to[2].get<std::int32_t>(), args.dropped = to[3].get<std::int32_t>();
    const Stream stream;
    check(launch_assign_slots(args, stream.get()), "launch_assign_slots");
    stream.synchronize();
    const Assigned found{download<std::int32_t>(to[0]), download<std::int32_t>(to[1]),
                         download<std::int32_t>(to[2]), download<std::int32_t>(to[3])};
    ASSERT_EQ(found, wanted) << i << ": " << args.tokens << " tokens, " << args.choices << " of "
                             << args.experts << " experts, capacity " << args.capacity;
  }
}

/// Results of the kernel that merges slots.
struct Merged {
  std::vector<std::int32_t> live, merged_of, token_of, row_of, slot_at;
  bool operator==(const Merged&) const = default;
};

Merged by_hand(const MergeSlotsArgs& args, const std::vector<std::int32_t>& counts,
               const std::vector<std::int32_t>& slot_of) {
  Merged all;
  const int of_expert = args.ranks * args.capacity;
  all.live.assign(static_cast<std::size_t>(args.experts), 0);
  all.token_of.assign(static_cast<std::size_t>(args.experts) * of_expert, -1);
  all.row_of = all.slot_at = all.token_of;
  std::vector<std::int32_t> first;  // merged slot of a rank and expert
  for (int rank = 0; rank < args.ranks; ++rank)
    for (int expert = 0; expert < args.experts; ++expert) {
      std::int32_t& live = all.live[static_cast<std::size_t>(expert)];
      first.push_back(expert * of_expert + live);
      for (int i = 0; i < counts[first.size() - 1]; ++i, ++live) {
        const auto slot = expert * of_expert + live, row = expert * of_expert + rank * args.capacity + i;
        all.row_of[static_cast<std::size_t>(slot)] = row;
        all.slot_at[static_cast<std::size_t>(row)] = slot;
      }
    }
  for (std::size_t i = 0; i < slot_of.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i) / args.choices;
    std::int32_t slot = slot_of[i];
    if (slot >= 0) {
      const int of = token / args.tokens * args.experts + slot / args.capacity;
      slot = first[static_cast<std::size_t>(of)] + slot % args.capacity;
      all.token_of[static_cast<std::size_t>(slot)] = token;
    }
    all.merged_of.push_back(slot);
  }
  return all;
}

TEST(MergeSlots, LetRowsOfAllRanksFollowEachOther) {
  if (!gpu_here()) GTEST_SKIP() << "no GPU";
  Dice dice(2);
  for (int i = 0; i < 300; ++i) {
    MergeSlotsArgs args;
    args.ranks = static_cast<std::int32_t>(dice.size(1, i % 20 == 0 ? 64 : 8));
    args.tokens = static_cast<std::int32_t>(dice.size(1, i % 10 == 0 ? 3000 : 70));
    args.choices = static_cast<std::int32_t>(dice.size(1, 9));
    args.experts = static_cast<std::int32_t>(dice.size(1, i % 30 == 0 ? 600 : 40));
    args.capacity =
        static_cast<std::int32_t>(dice.size(1, 2 * args.tokens * args.choices / args.experts + 1));
    std::vector<std::int32_t> counts, slot_of;
    for (int rank = 0; rank < args.ranks; ++rank) {
      AssignSlotsArgs assign;
      assign.most_tokens = args.tokens;
      assign.tokens = static_cast<std::int32_t>(dice.size(0, args.tokens));
      assign.choices = args.choices, assign.experts = args.experts, assign.capacity = args.capacity;
      std::vector<std::int32_t> ids;
      for (std::int64_t at = 0; at < std::int64_t{assign.tokens} * args.choices; ++at)
        ids.push_back(i % 3 == 0 ? args.experts - 1 : static_cast<std::int32_t>(dice.size(-1, args.experts)));
      const Assigned assigned = by_hand(assign, ids);
      counts.insert(counts.end(), assigned.counts.begin(), assigned.counts.end());
      slot_of.insert(slot_of.end(), assigned.slot_of.begin(), assigned.slot_of.end());
    }
    const Merged wanted = by_hand(args, counts, slot_of);
    const DeviceMemory by_rank = upload(counts), of_choices = upload(slot_of);
    std::vector<DeviceMemory> to;
    for (const auto* one :
         {&wanted.live, &wanted.merged_of, &wanted.token_of, &wanted.row_of, &wanted.slot_at})
      to.push_back(upload(std::vector<std::int32_t>(one->size(), 7)));
    args.counts = by_rank.get<std::int32_t>(), args.slot_of = of_choices.get<std::int32_t>();
    args.live = to[0].get<std::int32_t>(), args.merged_of = to[1].get<std::int32_t>();
    args.token_of = to[2].get<std::int32_t>(), args.row_of = to[3].get<std::int32_t>();
    args.slot_at = to[4].get<std::int32_t>();
    const Stream stream;
    check(launch_merge_slots(args, stream.get()), "launch_merge_slots");
    stream.synchronize();
    const Merged found{download<std::int32_t>(to[0]), download<std::int32_t>(to[1]),
                       download<std::int32_t>(to[2]), download<std::int32_t>(to[3]),
                       download<std::int32_t>(to[4])};
    ASSERT_EQ(found, wanted) << i << ": " << args.ranks << " ranks, " << args.tokens << " tokens, "
                             << args.choices << " of " << args.experts << " experts, capacity "
                             << args.capacity;
  }
}

class SlotsOnGpus : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (gpus() < GetParam()) GTEST_SKIP() << GetParam() << " GPUs are needed, there are " << gpus();
    world = make_cuda_world(GetParam());
  }
  /// Four experts of a rank, small ones, as the reference is most of the time. Tiles of 64 and 128 rows end
  /// within the slots of a source.
  Problem experts(Op op, std::int32_t capacity) const {
    Problem p{.op = op, .world = GetParam(), .n = 512, .k = 256, .dtype = DType::bf16, .transpose_b = true};
    if (p.traits().chains()) p.inner = 384, p.epilogue.activation = Activation::swiglu;
    p.experts = {4 * GetParam(), 3, capacity};
    return with_m(p, 300);
  }
  std::vector<Params> ways(Op op) const {
    std::vector<Params> ways{SequentialParams{}};
    const OperatorTraits& of = traits(op);
    if (of.slices_experts() && !of.replicates_tokens() && GetParam() > 1) {
      ways.push_back(SequentialParams{.slots = SlotOrder::merged});
      if (world->capabilities().remote_memory) {
        ways.push_back(FusedParams{.slots = SlotOrder::merged});
        ways.push_back(FusedParams{.stage_fp32 = true, .slots = SlotOrder::merged});
        ways.push_back(FusedParams{.tile = {.rows = 64, .cols = 256}, .slots = SlotOrder::merged});
      }
    }
    if (GetParam() > 1 && !of.replicates_tokens()) ways.push_back(ChunkedParams{});  // one rank has no peers
    if (GetParam() > 1) ways.push_back(SignalParams{});
    if (world->capabilities().remote_memory || GetParam() == 1) {
      ways.push_back(FusedParams{});
      ways.push_back(FusedParams{.helpers = 8});
      ways.push_back(FusedParams{.helpers = FusedParams::no_helpers});
      ways.push_back(FusedParams{.tile = {.rows = 64, .cols = 256}});
      ways.push_back(FusedParams{.tile = {.rows = 128, .cols = 256, .order = {Raster::along_n, 8, 2, 1, 0}}});
    }
    if (of.replicates_tokens()) {  // in strips of columns, and in one hop and two
      ways.push_back(SignalParams{.tile = {.rows = 128, .cols = 128}, .group_waves = {1, 2, 1}});
      if (world->capabilities().remote_memory)
        ways.push_back(FusedParams{.tile = {.rows = 128, .cols = 128}, .helpers = 8, .one_shot = true});
    }
    return ways;
  }
  /// What tokens choose, with the corners first: all choose one expert, and nobody chooses any.
  std::shared_ptr<const Routing> choices(Dice& dice, const Problem& p, int number) const {
    if (number >= 2)
      return shingle::test::random_routing(dice, p.sources(), p.m * p.experts.topk, p.experts.count,
                                           p.experts.topk, p.traits().expert_split());
    std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(p.sources()));
    for (auto& rows : dest)
      rows.resize(static_cast<std::size_t>(number == 0 ? p.m * p.experts.topk : 0), p.experts.count - 1);
    return std::make_shared<const Routing>(
        Routing::to_experts(std::move(dest), p.experts.count, p.traits().expert_split()));
  }

  std::unique_ptr<World> world;
};
INSTANTIATE_TEST_SUITE_P(Worlds, SlotsOnGpus, testing::Values(1, 2, 4, 8), testing::PrintToStringParamName());

/// The graphs of one call on all local ranks.
class CapturedCall {
 public:
  CapturedCall(Context& context, int op, std::int64_t m, std::span<const Argument> arguments,
               const Streams& streams)
      : streams_(streams) {
    streams.each([&](int, cudaStream_t stream) {
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    });
    std::exception_ptr failed;
    try {
      context.call(op, m, arguments, streams.handles());
    } catch (...) {
      failed = std::current_exception();
    }
    std::vector<cudaGraph_t> captured;
    cudaError_t ended = cudaSuccess;
    streams.each([&](int, cudaStream_t stream) {
      const cudaError_t error = cudaStreamEndCapture(stream, &captured.emplace_back());
      if (ended == cudaSuccess) ended = error;
    });
    // Not before all captures of this thread have ended: to make a graph is not allowed beside one.
    std::size_t next = 0;
    streams.each([&](int, cudaStream_t) {
      cudaGraph_t const graph = captured[next++];
      if (graph == nullptr) return;
      if (!failed && ended == cudaSuccess) ended = cudaGraphInstantiate(&graphs_.emplace_back(), graph, 0);
      cudaGraphDestroy(graph);
    });
    if (failed) std::rethrow_exception(failed);
    check(ended, "capture a call");
  }
  ~CapturedCall() {
    for (const cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  }
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  void replay() const {
    std::size_t at = 0;
    streams_.each(
        [&](int, cudaStream_t stream) { check(cudaGraphLaunch(graphs_[at++], stream), "cudaGraphLaunch"); });
  }

 private:
  const Streams& streams_;
  std::vector<cudaGraphExec_t> graphs_;
};

void write_ids(World& world, const Inputs& inputs, const Workspace& memory) {
  for (const int rank : world.local_ranks())
    write_input(world, inputs, rank, Role::topk_ids, const_cast<void*>(memory.data(rank, Role::topk_ids)));
}

/// Captures one call, and replays it with `routings` routings. Prints the reason if the backend rejects the
/// plan.
void serve_by_one_graph(World& world, const Problem& problem, const Params& params,
                        const std::function<std::shared_ptr<const Routing>(int)>& routing, int routings) {
  SCOPED_TRACE(describe(problem) + " by " + describe(params));
  Context context(world, {.verify = true, .timeout_us = 20e6});
  const int declared = context.declare(problem, {params});
  const auto first = random_inputs(problem, 1, Values::integers, routing(0));
  Workspace memory(world, *first);
  const std::vector<Argument> arguments = memory.arguments(problem);
  const Streams streams(world);
  try {
    context.call(declared, problem.m, arguments);
    context.synchronize();
    const CapturedCall graph(context, declared, problem.m, arguments, streams);
    for (int number = 0; number < routings && !testing::Test::HasFailure(); ++number) {
      const auto inputs = random_inputs(problem, 1, Values::integers, routing(number));
      write_ids(world, *inputs, memory);
      memory.poison_outputs();
      graph.replay();
      ASSERT_TRUE(streams.wait());
      const Check result = shingle::check(*inputs, memory.outputs());
      EXPECT_TRUE(result.passed) << "routing " << number << ": " << result.max_error << " at "
                                 << result.worst;
    }
  } catch (const Unsupported& reason) {
    std::printf("unserved: %s\n", reason.what());
  }
}

TEST_P(SlotsOnGpus, OneGraphServesAnyRouting) {
  Dice dice(static_cast<std::uint64_t>(GetParam()));
  for (const Op op :
       {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::moe, Op::allgather_grouped_gemm,
        Op::grouped_gemm_reducescatter, Op::moe_tp, Op::grouped_gemm_allreduce, Op::moe_allreduce})
    for (const std::int32_t capacity : {70, 300})
      for (const Params& params : ways(op)) {
        const Problem problem = experts(op, capacity);
        // The reference takes most of the time: default params have all routings where choices are dropped.
        const int routings = params == Params{FusedParams{}} && capacity < problem.m ? 100 : 6;
        serve_by_one_graph(
            *world, problem, params, [&](int number) { return choices(dice, problem, number); }, routings);
      }
}

/// Rows that bulk copies move in two parts of unequal lengths.
TEST_P(SlotsOnGpus, LongRowsArePicked) {
  Dice dice(static_cast<std::uint64_t>(30 + GetParam()));
  for (const Op op : {Op::alltoall_grouped_gemm, Op::grouped_gemm_alltoall, Op::allgather_grouped_gemm,
                      Op::grouped_gemm_reducescatter, Op::moe_allreduce})
    for (const Params& params : ways(op)) {
      Problem problem = with_m(experts(op, 70), 120);
      problem.n = problem.k = 2056;
      serve_by_one_graph(
          *world, problem, params, [&](int number) { return choices(dice, problem, number); }, 3);
    }
}

TEST_P(SlotsOnGpus, GiveTheBitsOfARoutingThatTheHostKnows) {
  Dice dice(static_cast<std::uint64_t>(10 + GetParam()));
  const auto results = [&](const Problem& problem, const Params& params,
                           std::shared_ptr<const Routing> chosen) {
    const auto inputs = random_inputs(problem, 3, Values::normal, std::move(chosen));
    Operator op(*world, problem, {.params = params, .timeout_us = 20e6});
    Workspace memory(*world, *inputs);
    memory.bind(op);
    memory.poison_outputs();
    op.executable().poison();
    op.run();
    std::vector<std::vector<std::byte>> bits;
    for (const Output& output : memory.outputs()) {
      const auto* const at = static_cast<const std::byte*>(output.memory);
      if (output.role == Role::out) bits.emplace_back(at, at + bytes_of(problem, Role::out, output.rank));
    }
    return bits;
  };
  constexpr Op ops[] = {Op::moe, Op::moe_tp, Op::moe_allreduce};
  for (int i = 0; i < 12; ++i)
    for (const Params& params : ways(ops[i % 3])) {
      const Problem slots = experts(ops[i % 3], 900);
      std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(slots.sources()));
      for (auto& rows : dest)
        for (std::int64_t row = 0; row < slots.m * slots.experts.topk; ++row)
          rows.push_back(static_cast<std::int32_t>(dice.size(0, slots.experts.count - 1)));
      Problem known = slots;
      known.experts.capacity = 0;
      const auto choices = std::make_shared<const Routing>(
          Routing::to_experts(std::move(dest), slots.experts.count, slots.traits().expert_split()));
      known.routing = choices;
      try {
        Params without_slots = params;
        std::visit(
            [](auto& at) {
              if constexpr (requires { at.slots; }) at.slots = SlotOrder::automatic;
            },
            without_slots);
        EXPECT_EQ(results(slots, params, choices), results(known, without_slots, {})) << describe(params);
      } catch (const Unsupported& reason) {
        std::printf("unserved: %s\n", reason.what());
      }
    }
}

TEST_P(SlotsOnGpus, ARankMayHaveFewerTokens) {
  Dice dice(static_cast<std::uint64_t>(20 + GetParam()));
  for (const Op op : {Op::moe, Op::moe_tp, Op::moe_allreduce})
    for (const Params& params : ways(op)) {
      const Problem problem = experts(op, 60);
      Context context(*world, {.timeout_us = 20e6});
      const int declared = context.declare(problem, {params});
      for (int i = 0; i < 20 && !HasFailure(); ++i) {
        const auto chosen = choices(dice, problem, i);
        const auto inputs = random_inputs(problem, static_cast<std::uint64_t>(i), Values::integers, chosen);
        Workspace memory(*world, *inputs);
        for (const int rank : world->local_ranks())  // the reference has zeros for tokens that no rank has
          world->fill(rank, const_cast<void*>(memory.data(rank, Role::out)), 0,
                      static_cast<std::size_t>(bytes_of(problem, Role::out, rank)));
        std::vector<Argument> arguments = memory.arguments(problem);
        for (Argument& one : arguments)
          if (counts_tokens(problem, one.role))
            one.matrix.shape.rows = chosen->rows(problem.source_of(one.rank)) / problem.experts.topk;
        try {
          context.call(declared, problem.m, arguments);
        } catch (const Unsupported& reason) {
          std::printf("unserved: %s\n", reason.what());
          break;
        }
        context.synchronize();
        const Check result = shingle::check(*inputs, memory.outputs());
        EXPECT_TRUE(result.passed) << "call " << i << ": " << result.max_error << " at " << result.worst;
      }
    }
}

}  // namespace
}  // namespace shingle::cuda::test

#endif
