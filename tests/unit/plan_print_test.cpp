#include "shingle/plan/print.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/text/describe.hpp"
#include "sample_plans.hpp"
#include "shingle/base/error.hpp"

namespace shingle::plan_print_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Plan reducescatter(int world, std::int64_t m, const Params& params) {
  Problem p;
  p.op = Op::gemm_reducescatter;
  p.world = world;
  p.m = m, p.n = 64, p.k = 24;
  p.dtype = DType::bf16;
  Machine machine;
  machine.workers = 4;
  machine.tile_rows = machine.tile_cols = 32;
  return plan_with(p, machine, params).value();
}

TEST(Print, AWholePlan) {
  Plan plan = reducescatter(2, 127, SignalParams{.group_waves = {1, 1}});
  plan.rounding = "rounded once";
  EXPECT_EQ(to_text(plan),
            "gemm+reducescatter 127x64x24 bf16, 2 ranks\n"
            "signal groups=1,1 tile=32x32; 4 workers a rank\n"
            "rounding: rounded once\n"
            "buffers\n"
            "  a        input     bf16  127x24  6.0 KiB\n"
            "  b        input     bf16  24x64  3.0 KiB\n"
            "  out      output    bf16  64x64 on rank 0; 63x64 on rank 1  8.0 KiB\n"
            "  staging  internal  bf16  256x32  16.0 KiB\n"
            "counters, and what they grow by an epoch\n"
            "  computed  add  2 entries: 4 each\n"
            "  received  add  2 entries: 1 each\n"
            "communicators\n"
            "  world  ranks 0-1\n"
            "rank 0\n"
            "  lane compute\n"
            "    0: gemm 128x64x24, 8 tiles of 32x32 (m4 n2) in groups g of 4 each: a (rows 0:64 of 2 "
            "shards, 16 at a time) * b"
            " -> slots of staging by 2 parts, notifies computed[g], 1-4 workers\n"
            "    1: permute 64x64, 8 tiles of 16x32 (m4 n2) in groups g of 4 each: slots of staging -> out,"
            " awaits received[g] >= 1 each, 1-4 workers\n"
            "  lane communicate\n"
            "    0: await computed[0] >= 4\n"
            "    1: reducescatter staging[0:128] -> staging[0:64] over world\n"
            "    2: notify received[0] + 1\n"
            "    3: await computed[1] >= 4\n"
            "    4: reducescatter staging[128:256] -> staging[128:192] over world\n"
            "    5: notify received[1] + 1\n"
            "  issued in the order compute, communicate x 6, compute\n"
            "rank 1: as rank 0, but for (r is the rank)\n"
            "  communicate 1: reducescatter staging[0:128] -> staging[{64r}:{64+64r}] over world\n"
            "  communicate 4: reducescatter staging[128:256] -> staging[{128+64r}:{192+64r}] over world\n");
}

TEST(Print, SaysHowRanksDiffer) {
  const std::string text = to_text(reducescatter(3, 100, SequentialParams{}));
  EXPECT_THAT(
      text,
      HasSubstr("ranks 1-2: as rank 0, but for (r is the rank)\n"
                "  rank 2: compute 3: permute 32x64, 8 tiles of 4x64: part[0:32] -> out, 1-4 workers\n"));
  Plan plan = reducescatter(4, 128, SequentialParams{});
  EXPECT_THAT(to_text(plan), HasSubstr("ranks 1-3: as rank 0\n"));
  // A push to the next rank, to rows by the own rank: numbers that follow from the rank are said by a
  // formula.
  for (int r = 0; r < 4; ++r) {
    plan.ranks[r].lanes[0].steps.push_back(Copy{{0, r, 0, 8, 0, 24}, {3, (r + 1) % 4, 16 + 8 * r, 8, 0, 24}});
    plan.ranks[r].issue.push_back(0);
  }
  EXPECT_THAT(to_text(plan),
              HasSubstr("  compute 2: copy a[0:8] -> product[{16+8r}:{24+8r}, 0:24]@{(1+r)%4}\n"));
  // Other lanes are printed in full.
  plan.ranks[3].lanes[0].steps.pop_back();
  plan.ranks[3].issue.pop_back();
  EXPECT_THAT(to_text(plan),
              AllOf(HasSubstr("ranks 1-2: as rank 0, but for"), HasSubstr("\nrank 3\n  lane compute\n")));
}

TEST(Print, OneRank) {
  const Plan plan = reducescatter(3, 100, SequentialParams{});
  EXPECT_THAT(to_text(plan, 2),
              AllOf(HasSubstr("\nrank 2\n"), HasSubstr("part[0:32] -> out"), Not(HasSubstr("rank 0\n"))));
  EXPECT_THROW(to_text(plan, 3), InvalidArgument);
}

TEST(Print, FoldsWhatRepeats) {
  const std::string text = to_text(reducescatter(2, 256, ChunkedParams{.chunks = 8}));
  EXPECT_THAT(
      text,
      HasSubstr("    for i = 0..7\n"
                "      {2i}: await computed[{i}] >= 1\n"
                "      {1+2i}: reducescatter product[{32i}:{32+32i}] -> out[{16i}:{16+16i}] over world\n"));
  EXPECT_THAT(text, HasSubstr("  issued in the order (compute x 2, communicate x 2) x 8\n"));
}

TEST(Print, IsShortForLongPlans) {
  const std::string text = to_text(reducescatter(16, 1 << 20, ChunkedParams{.chunks = 512}));
  EXPECT_LT(text.size(), 4000u);
}

TEST(Describe, EveryStep) {
  const Plan plan = test::all_steps();
  const auto line = [&](int rank, int lane, int step) {
    return describe(plan, plan.ranks[rank].lanes[lane].steps[step]);
  };
  EXPECT_EQ(line(0, 0, 0), "fill partial[1:3, 3:4]@0 with zeros");
  EXPECT_EQ(line(0, 0, 1),
            "gemm 8x4x6, 4 tiles of 4x2 (n2+1 m2) in groups g of 1, 3: a@0^T (rows 0:4 of 2 shards, 2 at a "
            "time) * b@0^T + bias, "
            "relu -> slots of staging[4:20, 2:4]@0 by 2 parts, awaits done[0] >= 1, notifies done[g]@1,0, "
            "2-3 workers");
  EXPECT_EQ(line(0, 0, 2),
            "permute 5x4, 2 tiles of 5x2: pools of staging[0:24, 0:2]@0 (from rank 1 for rank 0), + "
            "residual@0 (kept in sum@0), "
            "rmsnorm 1e-06 -> out@0 (rows from rank 1 for rank 0)");
  EXPECT_EQ(
      line(1, 0, 0),
      "reduce 8x4, 4 tiles of 4x2 (n2+1 m2) in groups g of 2 each and groups h of 1, 3, items 1:3: "
      "slots of staging[0:16, 0:2]@1 + partial[0:16]@1 (rows 7:15) + pools of staging@0 -> partial[0:8]@1, "
      "awaits done[h] >= 1, 0, 0-1 workers");
  EXPECT_EQ(line(0, 1, 0), "await done[1]@0 >= 1");
  EXPECT_EQ(line(0, 1, 1), "allreduce staging[0:8]@0 in place over world, 1 worker");
  EXPECT_EQ(line(0, 1, 4),
            "alltoall staging[0:8]@0 -> staging[12:21]@0, sends 5, 3, receives 2, 7 rows by rank over world");
  EXPECT_EQ(line(0, 1, 5),
            "exchange staging[0:8]@0 to rank 1, staging[0:8]@0 to rank 0, staging[8:10]@0 from rank 1, "
            "staging[16:24]@0 from rank 0 "
            "over world, 1-2 workers");
  EXPECT_EQ(line(0, 2, 0), "copy staging[0:2, 1:3]@0 -> staging[4:6, 0:2]@1");
  EXPECT_EQ(line(0, 2, 1), "broadcast staging[0:8]@0 -> staging[0:8]@1 and staging[8:16]@0");
  EXPECT_EQ(line(0, 2, 2), "swap staging[0:2]@0 <-> staging[0:2]@1");
  EXPECT_EQ(line(0, 2, 3), "notify flag[0]@1 = 2");
}

TEST(Describe, SlotsOfAllRanks) {
  Problem p{.op = Op::allgather_grouped_gemm, .world = 2, .n = 8, .k = 8, .experts = {3, 2, 4}};
  const Plan plan = plan_sequential(with_m(p, 6), {}, {.slots = SlotOrder::merged}).value();
  std::vector<std::string> lines;
  for (const Step& step : plan.ranks[0].lanes[0].steps)
    if (std::holds_alternative<MergeSlots>(step)) {
      EXPECT_EQ(name(step), "merge-slots");
      lines.push_back(describe(plan, step));
    }
  EXPECT_THAT(lines, ElementsAre("merge slots slot_of@0 by counts live@0 -> merged live@0, token_of@0, "
                                 "slot_at@0"));
}

TEST(Describe, WherePointsAtAStep) {
  EXPECT_EQ(where(test::all_steps(), 0, 1, 5), "rank 0, lane wire, step 5 (exchange)");
}

TEST(Describe, SurvivesBadIndices) {
  Plan plan = test::all_steps();
  EXPECT_EQ(describe(plan, Await{{5, 0, 0}, 1}), "await counter 5?[0]@0 >= 1");
  EXPECT_EQ(describe(plan, Copy{{-1, 0, 0, 1, 0, 1}, {7, 9, 0, 1, 0, 4}}),
            "copy buffer -1? -> staging[0:1]@9");
}

TEST(Fold, MergesNumbersThatGrowEvenly) {
  using text::merged;
  EXPECT_EQ(merged({"a 1 b 10", "a 2 b 8", "a 3 b 6"}, 'i'), "a {1+i} b {10-2i}");
  EXPECT_EQ(merged({"a 1", "a 2", "a 4"}, 'i'), "");
  EXPECT_EQ(merged({"a 1", "b 1"}, 'i'), "");
  EXPECT_EQ(merged({"@1 07", "@2 07", "@0 07"}, 'r', 3), "@{(1+r)%3} 07");
  EXPECT_EQ(merged({"x1234567890123", "x1234567890123"}, 'i'), "x1234567890123");
}

TEST(Fold, NeedsThreeRepetitions) {
  using text::folded;
  EXPECT_THAT(folded({"a 1", "a 2"}), ElementsAre("a 1", "a 2"));
  EXPECT_THAT(folded({"z", "a 1", "b", "a 2", "b", "a 3", "b", "a 4"}),
              ElementsAre("z", "for i = 0..2", "  a {1+i}", "  b", "a 4"));
}

TEST(Lists, AreCut) {
  EXPECT_EQ(text::list({5}), "5");
  EXPECT_EQ(text::list({5, 5}), "5 each");
  EXPECT_EQ(text::list({1, 1, 2, 2, 2, 3}), "1, 1, 2 (3 times), 3");
  std::vector<std::int64_t> many(40);
  for (int i = 0; i < 40; ++i) many[i] = i;
  EXPECT_EQ(text::list(many), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (40 in all)");
  EXPECT_EQ(text::ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

}  // namespace
}  // namespace shingle::plan_print_test
