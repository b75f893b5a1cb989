// Flagged buffers: what their proof needs, and what it refuses. Each wrong plan is a right one of
// `low-latency` with one change.
#include <algorithm>

#include "lower/launch_program.hpp"
#include "plan/steps.hpp"
#include "shingle/planner/planner.hpp"
#include "support/expect_proof.hpp"

namespace shingle::verify_flagged_test {
namespace {

using namespace test;

Machine of_workers(std::int32_t workers) {
  Machine machine;
  machine.workers = workers;
  return machine;
}

Plan planned(Op op, int hops = 1, int world = 2, std::int64_t m = 8) {
  Problem p = small(op, world);
  p.m = m;
  return plan_low_latency(p, of_workers(2), {.hops = hops}).value();
}

std::vector<Step>& steps_of(Plan& plan, int rank) {
  return plan.ranks[static_cast<std::size_t>(rank)].lanes[0].steps;
}

/// Removes the steps of all ranks for which drops(step) holds.
template <class Drops>
Plan without(Plan plan, Drops drops) {
  for (int rank = 0; rank < plan.world(); ++rank) {
    auto& steps = steps_of(plan, rank);
    std::erase_if(steps, drops);
    plan.ranks[static_cast<std::size_t>(rank)].issue.assign(steps.size(), 0);
  }
  return plan;
}

std::int32_t counter(const Plan& plan, const std::string& name) {
  const auto at = std::ranges::find(plan.counters, name, &Counter::name);
  return static_cast<std::int32_t>(at - plan.counters.begin());
}

void forget_growth(Plan& plan, std::int32_t counter) {
  for (auto& entries : plan.counters[static_cast<std::size_t>(counter)].growth)
    std::ranges::fill(entries, 0u);
}

bool reads_flagged(const Plan& plan, const Step& step) {
  const auto* const pass = std::get_if<Elementwise>(&step);
  return pass != nullptr && std::ranges::any_of(pass->from, [&](const Placement& from) {
           return plan.buffers[static_cast<std::size_t>(from.slice.buffer)].flagged;
         });
}

TEST(VerifyFlagged, PlansOfLowLatencyAreProven) {
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm})
    for (const int world : {2, 3, 4})
      for (const std::int64_t m : {1, 2, 7})
        for (const int hops : {1, 2})
          for (const Setting setting : {Setting::alone, Setting::context}) {
            if (hops == 2 && op != Op::gemm_allreduce) continue;
            const Proof proof = verify(planned(op, hops, world, m), setting);
            EXPECT_TRUE(proof.ok) << proof.rule << ": " << proof.failure;
            EXPECT_EQ(proof.skew, 1);
          }
}

TEST(VerifyFlagged, AnotherNumberOfCopiesIsMalformed) {
  Plan plan = planned(Op::gemm_allreduce);
  for (Buffer& buffer : plan.buffers)
    if (buffer.flagged) buffer.depth = 2;
  expect_wrong(plan, "well-formed", {"buffer 'parts': depth 2; expected 3, of a flagged buffer"});
}

TEST(VerifyFlagged, WithoutGreetingsARankWithoutRowsRunsAhead) {
  // Rank 1 of two has no row of one: it stores to rank 0 and gets nothing from it.
  const Plan right = planned(Op::gemm_reducescatter, 1, 2, 1);
  const std::int32_t present = counter(right, "parts present");
  Plan wrong = without(right, [&](const Step& step) { return synchronises(step); });
  forget_growth(wrong, present);
  const Proof proof = verify(wrong, Setting::context);
  ASSERT_FALSE(proof.ok);
  EXPECT_EQ(proof.rule, "race") << proof.failure;
  EXPECT_THAT(proof.failure, testing::HasSubstr("parts on rank 0"));
}

TEST(VerifyFlagged, AGreetingThatNobodyAwaitsMayComeTooEarly) {
  const Plan right = planned(Op::gemm_reducescatter, 1, 2, 1);
  const Plan wrong = without(right, [](const Step& step) { return std::holds_alternative<Await>(step); });
  const Proof proof = verify(wrong, Setting::context);
  EXPECT_FALSE(proof.ok);
}

TEST(VerifyFlagged, WhatNobodyAwaitsMayComeAfterTheClearing) {
  // Rank 1 sends a word more, which rank 0 counts, but does not await before it ends the call.
  Plan plan = planned(Op::gemm_allreduce);
  const auto more = static_cast<std::int32_t>(plan.counters.size());
  plan.counters.push_back({"more", CounterKind::add, {{1}, {0}}});
  plan.counters.back().of_arrivals = true;
  steps_of(plan, 1).push_back(Notify{{more, 0, 0}, 1});
  plan.ranks[1].issue.push_back(0);
  expect_wrong(plan, "context", {"may add to more[0] of rank 0", "after the rank has ended the call"},
               Setting::context);
}

TEST(VerifyFlagged, AContextHasRoomForEightMebibytes) {
  Plan plan = planned(Op::gemm_allreduce);
  for (Buffer& buffer : plan.buffers)
    if (buffer.flagged) buffer.rows.assign(buffer.rows.size(), most_flagged_bytes / (buffer.cols * 4) + 1);
  expect_wrong(plan, "well-formed", {"buffer 'parts'", "at most 8388608"});
}

TEST(VerifyFlagged, RowsThatNobodySendsNeverArrive) {
  Plan plan = planned(Op::gemm_allreduce);
  for (Step& step : steps_of(plan, 0))
    if (auto* const pass = std::get_if<Elementwise>(&step)) pass->notify.clear();
  const std::int32_t arrived = counter(plan, "parts arrived");
  std::ranges::fill(plan.counters[static_cast<std::size_t>(arrived)].growth[1], 0u);
  expect_wrong(plan, "progress", {"parts arrived"});
}

TEST(VerifyFlagged, OnlyAWaitingPassReadsThem) {
  Plan plan = planned(Op::gemm_allreduce);
  for (Step& step : steps_of(plan, 0))
    if (reads_flagged(plan, step)) std::get<Elementwise>(step).gates.clear();
  expect_wrong(plan, "well-formed", {"gates", "reads a flagged buffer, but awaits no arrivals"});
}

TEST(VerifyFlagged, AWaitForAnotherTileIsARace) {
  Plan plan = planned(Op::gemm_allreduce);
  for (Step& step : steps_of(plan, 0))
    if (reads_flagged(plan, step)) {
      auto& entries = std::get<Elementwise>(step).gates[0].entries;
      std::swap(entries[0], entries[1]);
    }
  expect_wrong(plan, "race", {"reads parts on rank 0", "with no order between them"});
}

TEST(VerifyFlagged, RanksShareNoOtherMemory) {
  Plan plan = planned(Op::gemm_allreduce);
  const auto product = std::ranges::find(plan.buffers, "product", &Buffer::name);
  const Slice remote = whole(plan, static_cast<std::int32_t>(product - plan.buffers.begin()), 1);
  steps_of(plan, 0).push_back(Fill{remote});
  plan.ranks[0].issue.push_back(0);
  expect_wrong(plan, "well-formed", {"uses 'product' of rank 1", "ranks share nothing else"});
  Plan filled = planned(Op::gemm_allreduce);
  const auto parts = std::ranges::find(filled.buffers, "parts", &Buffer::name);
  steps_of(filled, 0).push_back(
      Fill{whole(filled, static_cast<std::int32_t>(parts - filled.buffers.begin()), 0)});
  filled.ranks[0].issue.push_back(0);
  expect_wrong(filled, "well-formed", {"uses 'parts', which is flagged: only passes do"});
}

TEST(VerifyFlagged, ArrivalsAreCountedByWhatArrives) {
  Plan plan = planned(Op::gemm_allreduce);
  plan.counters[static_cast<std::size_t>(counter(plan, "parts arrived"))].of_arrivals = false;
  expect_wrong(plan, "well-formed", {"arrivals"});
  Plan begins = planned(Op::gemm_allreduce);
  begins.counters[static_cast<std::size_t>(counter(begins, "parts present"))].of_begins = true;
  expect_wrong(begins, "well-formed", {"counts arrivals, so it adds, and counts nothing else"});
}

TEST(LowLatency, IsOneKernelAHopBehindTheProduct) {
  const auto kinds = [](const Plan& plan) {
    std::vector<LaunchKind> found;
    const LaunchProgram program = lower(plan);
    for (const Launch& launch : program.ranks[0].launches) found.push_back(launch.kind);
    return found;
  };
  using enum LaunchKind;
  EXPECT_EQ(kinds(planned(Op::gemm_allreduce, 1)), (std::vector{kernel, delivery}));
  EXPECT_EQ(kinds(planned(Op::gemm_allreduce, 2)), (std::vector{kernel, delivery, delivery}));
  EXPECT_EQ(kinds(planned(Op::gemm_reducescatter)), (std::vector{kernel, delivery}));
  EXPECT_EQ(kinds(planned(Op::allgather_gemm)), (std::vector{delivery, kernel}));
  EXPECT_EQ(kinds(planned(Op::gemm_reducescatter, 1, 2, 1)), (std::vector{kernel, delivery}));
  const LaunchProgram program = lower(planned(Op::gemm_allreduce, 2));
  for (const Launch& launch : program.ranks[0].launches)
    EXPECT_EQ(launch.may_start_early, launch.kind == delivery) << name(launch.kind);
  EXPECT_TRUE(program.unfit_for_graph.empty()) << program.unfit_for_graph;
}

TEST(LowLatency, RefusesWhatItsKernelCannotDo) {
  const auto reason = [](const Problem& p, const LowLatencyParams& params = {}, Machine machine = {}) {
    const Result<Plan> plan = plan_low_latency(p, machine, params);
    return plan ? std::string() : plan.reason();
  };
  Problem p = small(Op::gemm_allreduce);
  const Machine machine = of_workers(2);
  EXPECT_EQ(reason(p, {}, machine), "");
  p.n = 9;
  EXPECT_THAT(reason(p, {}, machine), testing::HasSubstr("a row has 36 bytes"));
  p.n = 8, p.m = 1 << 20;
  EXPECT_THAT(reason(p, {}, machine), testing::HasSubstr("too many rows"));
  p.m = 8;
  EXPECT_THAT(reason(p, {.hops = 3}, machine), testing::HasSubstr("hops must be 1 or 2"));
  p.op = Op::gemm_reducescatter;
  EXPECT_THAT(reason(p, {.hops = 2}, machine), testing::HasSubstr("takes one hop"));
  Problem gather = small(Op::allgather);
  gather.k = gather.n;
  EXPECT_THAT(reason(gather, {}, machine), testing::HasSubstr("use copy-engine"));
  Machine apart = machine;
  apart.peer_memory = false;
  EXPECT_THAT(reason(small(Op::gemm_allreduce), {}, apart), testing::HasSubstr("is not accessible here"));
}

TEST(LowLatency, TakesTheHopsThatArePredictedFaster) {
  const auto hops = [](int world, std::int64_t m) {
    Problem p = small(Op::gemm_allreduce, world);
    p.m = m, p.n = 8192, p.k = 8, p.dtype = DType::bf16;
    Machine machine = of_workers(132);
    machine.link = {350, 1};
    machine.launch_us = 3, machine.signal_us = 1;
    return plan_low_latency(p, machine).value().params.front().value;
  };
  EXPECT_EQ(hops(2, 256), "1") << "with two ranks both send as much";
  EXPECT_EQ(hops(8, 4), "1");
  EXPECT_EQ(hops(8, 60), "2");
  EXPECT_EQ(hops(4, 8), "1");
}

}  // namespace
}  // namespace shingle::verify_flagged_test
