// Plans of copy engines: commands, engines and synchronisations are as many as the paper says (DMA
// collectives §4.2), ranks move in lock-step, and what cannot be served has a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/verify.hpp"

namespace shingle::copy_engine_plan_test {
namespace {

using testing::HasSubstr;

/// Two rows for every pair of ranks.
std::shared_ptr<const Routing> even_routing(int world) {
  std::vector<std::vector<std::int32_t>> dest(static_cast<std::size_t>(world));
  for (auto& rows : dest)
    for (int d = 0; d < world; ++d) rows.insert(rows.end(), 2, d);
  return std::make_shared<const Routing>(std::move(dest));
}

Problem collective(Op op, int world) {
  Problem p;
  p.op = op;
  p.world = world;
  p.m = 2 * world;
  p.n = p.k = 8;
  if (p.traits().routes()) p.routing = even_routing(world);
  return p;
}

Plan planned(const Problem& problem, const CopyEngineParams& params) {
  return plan_copy_engine(problem, Machine{}, params).value();
}

/// What the copy lanes of a rank, or of all, hold.
struct Counts {
  int engines = 0, copies = 0, broadcasts = 0, swaps = 0, notifies = 0, awaits = 0;
  bool operator==(const Counts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.engines << " engines, " << c.copies << " copies, " << c.broadcasts << " broadcasts, "
             << c.swaps << " swaps, " << c.notifies << " notifies, " << c.awaits << " awaits";
}

void count(const RankPlan& rank, Counts& counts) {
  for (const Lane& lane : rank.lanes) {
    if (lane.kind != LaneKind::copy) continue;
    ++counts.engines;
    for (const Step& step : lane.steps) {
      counts.copies += std::holds_alternative<Copy>(step);
      counts.broadcasts += std::holds_alternative<Broadcast>(step);
      counts.swaps += std::holds_alternative<Swap>(step);
      counts.notifies += std::holds_alternative<Notify>(step);
      counts.awaits += std::holds_alternative<Await>(step);
    }
  }
}

Counts count(const Plan& plan) {
  Counts counts;
  for (const RankPlan& rank : plan.ranks) count(rank, counts);
  return counts;
}

/// Copies of a rank that follow an await of the count with which senders to one receiver take turns.
int in_step_awaited(const Plan& plan, int rank) {
  int awaited = 0;
  for (const Lane& lane : plan.ranks[static_cast<std::size_t>(rank)].lanes)
    for (std::size_t i = 1; i < lane.steps.size(); ++i) {
      const auto* before = std::get_if<Await>(&lane.steps[i - 1]);
      awaited += before != nullptr && std::holds_alternative<Copy>(lane.steps[i]) &&
                 plan.counters[static_cast<std::size_t>(before->counter.counter)].name == "in step";
    }
  return awaited;
}

class Formulas : public testing::TestWithParam<int> {};

/// "With n devices this uses n · (n − 1) engines, each with a copy and a sync command" (§4.2.1).
TEST_P(Formulas, ParallelCopies) {
  const int n = GetParam(), pairs = n * (n - 1);
  for (const Op op : {Op::allgather, Op::alltoall})
    for (const bool prelaunch : {false, true})
      EXPECT_EQ(count(planned(collective(op, n), {.variant = CopyVariant::pcpy, .prelaunch = prelaunch})),
                (Counts{pairs, pairs, 0, 0, pairs, pairs}));
}

/// "(n − 1)/2 broadcast commands if n is odd, or (n − 2)/2 broadcasts and an additional copy if n is even"
/// (§4.2.2), an engine each.
TEST_P(Formulas, Broadcasts) {
  const int n = GetParam(), broadcasts = n % 2 ? (n - 1) / 2 : (n - 2) / 2, copies = n % 2 ? 0 : 1;
  const Plan plan = planned(collective(Op::allgather, n), {.variant = CopyVariant::bcst});
  for (const RankPlan& rank : plan.ranks) {
    Counts counts;
    count(rank, counts);
    EXPECT_EQ(counts,
              (Counts{broadcasts + copies, copies, broadcasts, 0, broadcasts + copies, broadcasts + copies}));
  }
}

/// "Exactly halves the number of commands": one for every pair of ranks, "each GPU only executes ~half the
/// number of swaps it requires" (§4.2.3).
TEST_P(Formulas, Swaps) {
  const int n = GetParam(), pairs = n * (n - 1) / 2;
  const Plan plan = planned(collective(Op::alltoall, n), {.variant = CopyVariant::swap});
  EXPECT_EQ(count(plan), (Counts{pairs, 0, 0, pairs, pairs, pairs}));
  for (const RankPlan& rank : plan.ranks) {
    Counts counts;
    count(rank, counts);
    EXPECT_GE(counts.swaps, (n - 1) / 2);
    EXPECT_LE(counts.swaps, n / 2);
  }
}

/// "Just one engine per device, and all copies back-to-back: only one sync command per GPU" (§4.2.4).
TEST_P(Formulas, BackToBack) {
  const int n = GetParam();
  for (const Op op : {Op::allgather, Op::alltoall})
    EXPECT_EQ(count(planned(collective(op, n), {.variant = CopyVariant::b2b})),
              (Counts{n, n * (n - 1), 0, 0, n, n}));
}

/// One engine a rank, which passes on n − 1 shards and tells of each (§6.5).
TEST_P(Formulas, Ring) {
  const int n = GetParam();
  EXPECT_EQ(count(planned(collective(Op::allgather, n), {.variant = CopyVariant::ring})),
            (Counts{n, n * (n - 1), 0, 0, n * (n - 1), n * (n - 1)}));
}

/// Where every rank gets rows of its own, each copy but a rank's first awaits that the one before it at its
/// receiver is through, of which the engine that made it tells, beside the receiver.
TEST_P(Formulas, InStep) {
  const int n = GetParam(), copies = n * (n - 1), in_step = n * (n - 2);
  for (const Op op : {Op::alltoall, Op::reducescatter}) {
    const Plan plan =
        planned(collective(op, n), {.variant = CopyVariant::ring, .trigger = EngineTrigger::direct});
    const int begun = n > 2 ? 2 * n : n;  // of the first receiver, and of the rank that is told of turns
    EXPECT_EQ(count(plan), (Counts{n, copies, 0, 0, copies + in_step, n + begun + in_step}));
    EXPECT_TRUE(verify(plan));
    for (int rank = 0; rank < n; ++rank) EXPECT_EQ(in_step_awaited(plan, rank), n - 2);
  }
}

/// Engines between one and one a command: as many syncs as engines, and all commands.
TEST_P(Formulas, EnginesAreAParam) {
  const int n = GetParam();
  for (int engines = 1; engines < n; ++engines)
    EXPECT_EQ(
        count(planned(collective(Op::allgather, n), {.variant = CopyVariant::pcpy, .engines = engines})),
        (Counts{n * engines, n * (n - 1), 0, 0, n * engines, n * engines}));
}

/// A reduce-scatter's exchange and an allreduce's exchange and gather, each as the variant has it; the sums
/// are the workers'.
TEST_P(Formulas, HybridReductions) {
  const int n = GetParam(), pairs = n * (n - 1);
  EXPECT_EQ(count(planned(collective(Op::reducescatter, n), {.variant = CopyVariant::pcpy})),
            (Counts{pairs, pairs, 0, 0, pairs, pairs}));
  EXPECT_EQ(count(planned(collective(Op::reducescatter, n), {.variant = CopyVariant::swap})),
            (Counts{pairs / 2, 0, 0, pairs / 2, pairs / 2, pairs / 2}));
  EXPECT_EQ(count(planned(collective(Op::allreduce, n), {.variant = CopyVariant::b2b})),
            (Counts{n, 2 * pairs, 0, 0, 2 * n, 2 * n}));
}

/// At each step of the lock-step order the copies of all ranks form a permutation: no two meet at one rank.
TEST_P(Formulas, NoTwoSendersMeet) {
  const int n = GetParam();
  const Plan plan = planned(collective(Op::alltoall, n), {.variant = CopyVariant::b2b});
  for (int i = 1; i < n; ++i) {
    std::set<int> receivers;
    for (const RankPlan& rank : plan.ranks)
      for (const Lane& lane : rank.lanes)
        if (lane.kind == LaneKind::copy)
          receivers.insert(std::get<Copy>(lane.steps[static_cast<std::size_t>(i)]).to.rank);
    EXPECT_EQ(receivers.size(), static_cast<std::size_t>(n)) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Formulas, testing::Range(2, 17));

/// Where engines look for their trigger: as many places as engines, ranks, or one (§4.2.5).
TEST(CopyEngine, PollLocations) {
  const auto places = [](PollScope poll) {
    std::set<std::pair<int, int>> seen;
    const Plan plan = planned(collective(Op::allgather, 5),
                              {.variant = CopyVariant::pcpy, .prelaunch = true, .poll = poll});
    for (const RankPlan& rank : plan.ranks)
      for (const Lane& lane : rank.lanes)
        if (lane.kind == LaneKind::copy) {
          const auto& await = std::get<Await>(lane.steps.front());
          seen.emplace(await.counter.rank, await.counter.entry);
        }
    return seen.size();
  };
  EXPECT_EQ(places(PollScope::engine), 20u);
  EXPECT_EQ(places(PollScope::rank), 5u);
  EXPECT_EQ(places(PollScope::collective), 1u);
}

/// The tiles of the GEMM are the trigger, engines tell the receivers, and no thread of the host is between.
TEST(CopyEngine, DirectTriggerHasNoHost) {
  Problem p = collective(Op::gemm_reducescatter, 4);
  p.m = 64, p.k = 16;
  for (const EngineTrigger trigger : {EngineTrigger::host, EngineTrigger::direct}) {
    const Plan plan = planned(p, {.variant = CopyVariant::pcpy, .prelaunch = true, .trigger = trigger});
    EXPECT_TRUE(verify(plan));
    const bool host = std::ranges::any_of(plan.ranks[0].lanes,
                                          [](const Lane& lane) { return lane.kind == LaneKind::host; });
    EXPECT_EQ(host, trigger == EngineTrigger::host);
    const auto& steps = plan.ranks[0].lanes[0].steps;
    const auto gemm =
        std::ranges::find_if(steps, [](const Step& s) { return std::holds_alternative<Gemm>(s); });
    EXPECT_EQ(std::get<Gemm>(*gemm).notify.empty(), trigger == EngineTrigger::host);
  }
}

/// What triggers engines is tiled as the machine is, and every tile counts; what does not is one product of a
/// library. Either leaves a worker of many to those that wait, and sums take all.
TEST(CopyEngine, ProductsAndSumsSuitTheMachine) {
  Machine machine;
  machine.workers = 132;
  machine.tile_rows = 128, machine.tile_cols = 256;
  Problem p{.op = Op::gemm_reducescatter, .world = 2, .m = 1000, .n = 512, .k = 64};
  for (const EngineTrigger trigger : {EngineTrigger::host, EngineTrigger::direct}) {
    const CopyEngineParams params{.variant = CopyVariant::b2b, .prelaunch = true, .trigger = trigger};
    const Plan plan = plan_copy_engine(p, machine, params).value();
    EXPECT_TRUE(verify(plan));
    const bool direct = trigger == EngineTrigger::direct;
    const std::int64_t tiles = direct ? 8 * 2 : 1;
    const auto& steps = plan.ranks[0].lanes[0].steps;
    for (const Step& step : steps) {
      if (const auto* gemm = std::get_if<Gemm>(&step)) {
        EXPECT_EQ(gemm->grid.tiles(), tiles);
        EXPECT_EQ(gemm->resources.most, 131);
      }
      if (const auto* sum = std::get_if<Elementwise>(&step)) {
        EXPECT_EQ(sum->grid.tiles(), 125);  // of 4 rows
      }
    }
    for (const Lane& lane : plan.ranks[0].lanes)
      if (lane.kind == LaneKind::copy) {
        EXPECT_EQ(std::get<Await>(lane.steps[0]).target, tiles);
      }
  }
}

/// A GEMM's tiles start a prelaunched gather, and its last sync lets the next GEMM begin; mediated by the
/// host, a lane of the host stands between on both sides.
TEST(CopyEngine, ProducerAndConsumer) {
  Problem p{.op = Op::gemm_allgather_gemm, .world = 3, .m = 30, .n = 8, .k = 4, .inner = 6};
  const auto counters = [](const std::vector<Step>& steps, const Plan& plan) {
    std::vector<std::string> awaited;
    for (const Step& step : steps)
      if (const auto* await = std::get_if<Await>(&step))
        awaited.push_back(plan.counters[static_cast<std::size_t>(await->counter.counter)].name);
    return awaited;
  };
  for (const EngineTrigger trigger : {EngineTrigger::host, EngineTrigger::direct}) {
    const Plan plan = planned(p, {.variant = CopyVariant::pcpy, .prelaunch = true, .trigger = trigger});
    EXPECT_TRUE(verify(plan));
    const bool direct = trigger == EngineTrigger::direct;
    for (const RankPlan& rank : plan.ranks) {
      const auto& steps = rank.lanes[0].steps;
      std::vector<const Gemm*> gemms;
      for (const Step& step : steps)
        if (const auto* gemm = std::get_if<Gemm>(&step)) gemms.push_back(gemm);
      ASSERT_EQ(gemms.size(), 2u);
      EXPECT_EQ(gemms[0]->notify.size(), direct ? 2u : 0u);  // one for each of two engines
      EXPECT_TRUE(std::holds_alternative<Gemm>(steps.back()));
      const std::vector<std::string> arrivals =
          direct ? std::vector<std::string>{"sent", "sent"} : std::vector<std::string>{"come"};
      EXPECT_EQ(counters(steps, plan), arrivals);
      for (const Lane& lane : rank.lanes) {
        if (lane.kind != LaneKind::copy) continue;
        EXPECT_TRUE(lane.submission.prelaunched);
        EXPECT_EQ(counters(lane.steps, plan).front(), "trigger");
      }
    }
  }
}

/// Threads that create the commands are dealt to ranks evenly; a later phase of an engine is a batch of its
/// own, unless all was queued ahead of time.
TEST(CopyEngine, Submission) {
  const Plan plan = planned(collective(Op::allreduce, 4), {.variant = CopyVariant::b2b, .launchers = 2});
  std::vector<int> launchers;
  for (const RankPlan& rank : plan.ranks)
    for (const Lane& lane : rank.lanes)
      if (lane.kind == LaneKind::copy) {
        launchers.push_back(lane.submission.launcher);
        EXPECT_EQ(lane.submission.doorbells.size(), 1u);
      }
  EXPECT_THAT(launchers, testing::ElementsAre(0, 0, 1, 1));
  const Plan early = planned(collective(Op::allreduce, 4), {.variant = CopyVariant::b2b, .prelaunch = true});
  for (const Lane& lane : early.ranks[0].lanes)
    if (lane.kind == LaneKind::copy) {
      EXPECT_TRUE(lane.submission.prelaunched);
      EXPECT_TRUE(lane.submission.doorbells.empty());
    }
}

TEST(CopyEngine, ChoosesByTheTotalSize) {
  const auto chosen = [](Op op, std::int64_t bytes) {
    Problem p = collective(op, 8);
    if (p.traits().routes()) {
      std::vector<std::vector<std::int32_t>> dest(8);
      for (auto& rows : dest)
        for (int d = 0; d < 8; ++d) rows.push_back(d);
      p.routing = std::make_shared<const Routing>(std::move(dest));
    }
    p.m = 8;
    p.n = p.k = bytes / 8 / 4;
    return std::get<CopyEngineParams>(params_of(planned(p, {}))).variant;
  };
  EXPECT_EQ(chosen(Op::allgather, 64 << 10), CopyVariant::b2b);
  EXPECT_EQ(chosen(Op::allgather, 256 << 10), CopyVariant::bcst);
  EXPECT_EQ(chosen(Op::allgather, 1 << 20), CopyVariant::pcpy);
  EXPECT_EQ(chosen(Op::alltoall, 32 << 10), CopyVariant::b2b);
  EXPECT_EQ(chosen(Op::alltoall, 64 << 10), CopyVariant::swap);
  EXPECT_EQ(chosen(Op::alltoall, 4 << 20), CopyVariant::pcpy);
}

TEST(CopyEngine, SaysWhatItCannotServe) {
  const auto reason = [](Problem p, const CopyEngineParams& params, Machine machine = {}) {
    const auto plan = plan_copy_engine(p, machine, params);
    return plan ? "" : plan.reason();
  };
  EXPECT_THAT(reason(collective(Op::alltoall, 3), {.variant = CopyVariant::bcst}),
              HasSubstr("other rows for each"));
  EXPECT_THAT(reason(collective(Op::allgather, 3), {.variant = CopyVariant::swap}),
              HasSubstr("sends one way"));
  EXPECT_THAT(reason(collective(Op::allgather, 3), {.variant = CopyVariant::ring, .engines = 2}),
              HasSubstr("one engine"));
  Problem uneven = collective(Op::alltoall, 2);
  uneven.routing =
      std::make_shared<const Routing>(std::vector<std::vector<std::int32_t>>{{0, 1, 1, 1}, {0, 1}});
  uneven.m = 4;
  EXPECT_THAT(reason(uneven, {.variant = CopyVariant::swap}), HasSubstr("same number of rows"));
  EXPECT_THAT(reason(collective(Op::allgather, 3), {.engines = -1}), HasSubstr("engines = -1"));
  EXPECT_THAT(reason(collective(Op::allgather, 3), {.launchers = 4}), HasSubstr("launchers = 4"));
  EXPECT_THAT(
      reason(collective(Op::allgather, 3), {.poll = PollScope::collective, .trigger = EngineTrigger::direct}),
      HasSubstr("needs --trigger host"));
  Machine processes;
  processes.peer_memory = false;
  EXPECT_THAT(reason(collective(Op::allgather, 3), {}, processes), HasSubstr("is not accessible here"));
  EXPECT_EQ(reason(collective(Op::allgather, 1), {}, processes), "");
}

}  // namespace
}  // namespace shingle::copy_engine_plan_test
