// Products whose own tiles are sums: what a plan says of them, and which are malformed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "shingle/base/error.hpp"
#include "shingle/plan/json.hpp"
#include "shingle/plan/placement.hpp"
#include "shingle/plan/print.hpp"
#include "shingle/planner/planner.hpp"
#include "shingle/verify/wellformed.hpp"
#include "support/own_sums.hpp"

namespace shingle::tile_sums_test {
namespace {

using namespace test;
using testing::HasSubstr;

/// Rank 1 of three: 12 rows and 12 columns in tiles of 2x4, so the own rows are the tiles at positions 12
/// to 17.
Plan scatter() {
  return with_own_sums(Op::gemm_reducescatter, 3);
}
Gemm& gemm(Plan& plan) {
  return summing(plan, 1);
}

TEST(TileSums, OwnTilesAreSumsAndTheOthersAreNot) {
  Plan plan = scatter();
  for (int rank = 0; rank < 3; ++rank) {
    const Gemm& step = summing(plan, rank);
    for (std::int64_t row = 0; row < 12; row += 2) {
      EXPECT_EQ(is_sum(step, row), row / 4 == rank) << "row " << row << " on rank " << rank;
      EXPECT_EQ(stored_at(step, row).data(), row / 4 == rank ? step.sums.to.data() : &step.out);
      EXPECT_EQ(stored_at(step, row).size(), 1u);
    }
  }
  Gemm none = gemm(plan);
  none.sums = {};
  EXPECT_FALSE(is_sum(none, 4));
  EXPECT_EQ(stored_at(none, 4).data(), &none.out);
}

TEST(TileSums, RoundTripThroughJson) {
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce, Op::mlp}) {
    const Plan plan = with_own_sums(op, 3);
    const std::string text = to_json(plan);
    EXPECT_THAT(text, HasSubstr("\"of_parts\":true"));
    EXPECT_EQ(plan_from_json(text), plan);
  }
}

/// Calls change(step) for every step with sums.
void for_each_sum(nlohmann::json& plan, const std::function<void(nlohmann::json& step)>& change) {
  for (auto& rank : plan["ranks"])
    for (auto& lane : rank["lanes"])
      for (auto& step : lane["steps"])
        if (step.contains("sums")) change(step);
}

TEST(TileSums, OfOlderPlansGoToOnePlace) {
  for (const Op op : {Op::gemm_reducescatter, Op::gemm_allreduce}) {
    const Plan plan = with_own_sums(op, 3);
    auto older = nlohmann::json::parse(to_json(plan));
    int found = 0;
    for_each_sum(older, [&](nlohmann::json& step) {
      nlohmann::json& to = step["sums"]["to"];
      ASSERT_EQ(to.size(), 1u);
      to = nlohmann::json(to[0]);
      ++found;
    });
    EXPECT_EQ(found, 3);
    EXPECT_EQ(plan_from_json(older.dump()), plan);
    for_each_sum(older, [](nlohmann::json& step) { step["sums"]["to"] = 1; });
    EXPECT_THAT([&] { (void)plan_from_json(older.dump()); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("sums.to: expected an array, found 1")));
  }
}

TEST(TileSums, NeedBothFieldsInJson) {
  std::string text = to_json(scatter(), -1);
  const auto at = text.find("\"sums\":{\"from\":[");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 14, "\"sums\":{\"off\"");
  EXPECT_THAT([&] { (void)plan_from_json(text); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("sums")));
}

TEST(TileSums, AreDescribed) {
  Plan plan = with_own_sums(Op::gemm_reducescatter, 3, true);
  const std::string text = describe(plan, gemm(plan));
  EXPECT_THAT(text,
              HasSubstr("-> staging[4:8]@1 of every row's owner; own rows + staging[0:4]@1 (rows 0:4 of 3 "
                        "shards, padded to 4) + staging[8:12]@1 (rows 0:4 of 3 shards, padded to 4) + bias, "
                        "gelu -> out@1 (rows 0:4 of 3 shards, padded to 4), parts await stored[0, 1, 0, 1, "
                        "0, 1] >= 0 (4 times), 6, 6, notifies "));
  EXPECT_THAT(plan.rounding,
              HasSubstr("rounded once to bf16 for their way; a row's owner adds them to its own in "
                        "fp32, in rank order, bit-identical from run to run, and rounds the sum "
                        "once to bf16"));
}

/// An all-reduce whose outputs peers cannot reach.
Plan kept_and_sent() {
  return plan_fused(own_sums_problem(Op::gemm_allreduce, 3), own_sums_machine(3),
                    {.sums = SumsIn::epilogue, .unregistered = true})
      .value();
}

TEST(TileSums, GoToTheOwnOutputAndToInternalMemoryOfPeers) {
  Plan plan = kept_and_sent();
  const std::vector<Placement>& to = gemm(plan).sums.to;
  ASSERT_EQ(to.size(), 2u);
  EXPECT_EQ(to[0].slice, (Slice{find_buffer(plan, Role::out), 1, 4, 4, 0, 12}));
  EXPECT_TRUE(replicas(to[0]).empty());
  EXPECT_EQ(plan.buffers[static_cast<std::size_t>(to[1].slice.buffer)].role, Role::internal);
  EXPECT_EQ(std::get<placement::Matrix>(to[1].form).ranks, (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(stored_at(gemm(plan), 4).size(), 2u);
  EXPECT_EQ(plan_from_json(to_json(plan)), plan);
  EXPECT_THAT(describe(plan, gemm(plan)),
              HasSubstr(" -> out[4:8]@1 (rows 0:4 of 3 shards, padded to 4) and sums[4:8]@1@2,0 (rows 0:4 of "
                        "3 shards, padded to 4), parts await"));
}

TEST(TileSums, OnlyRowsOfOtherRanksAreCopiedToTheOutput) {
  Plan plan = kept_and_sent();
  const auto& pass = std::get<Elementwise>(plan.ranks[1].lanes[0].steps.back());
  std::vector<std::int64_t> rows;
  for (std::int64_t at = 0; at < pass.grid.positions(); ++at)
    for_each_piece(pass.to, pass.grid, nullptr, at, [&](const Piece& piece) {
      EXPECT_EQ(piece.rank, 1);
      if (piece.col == 0)
        for (std::int64_t i = 0; i < piece.rows; ++i) rows.push_back(piece.row + i);
    });
  std::ranges::sort(rows);
  EXPECT_EQ(rows, (std::vector<std::int64_t>{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_THAT(describe(plan, pass), HasSubstr("sums@1 (rows 0:4 of 2 shards without 1, padded to 4)"));
}

struct Case {
  const char* name;
  std::function<void(Gemm&)> spoil;
  const char* says;
};

class MalformedSums : public testing::TestWithParam<Case> {};

TEST_P(MalformedSums, AreNamed) {
  Plan plan = scatter();
  ASSERT_EQ(malformed(plan), std::nullopt);
  GetParam().spoil(summing(plan, 1));
  const auto found = malformed(plan);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, HasSubstr("rank 1, lane compute, step "));
  EXPECT_THAT(*found, HasSubstr(GetParam().says));
  EXPECT_EQ(found->find('\n'), std::string::npos);
}

const Case cases[] = {
    {"NoParts",
     [](Gemm& g) {
       g.sums.from.clear();
       g.gates.clear();
     },
     "sums: stores sums of no parts; expected a part of each other rank"},
    {"GateWithoutSums", [](Gemm& g) { g.sums = {}; },
     "gates[0].of_parts: no tile of the step is a sum of parts"},
    {"Live", [](Gemm& g) { g.live = g.a; }, "sums: a grouped product has no sums"},
    {"SwiGlu",
     [](Gemm& g) {
       g.epilogue.activation = Activation::swiglu;
       g.grid.cols = g.b.cols / 2;
     },
     "sums: swiglu needs complete rows"},
    {"NotToOwners", [](Gemm& g) { g.out.form = placement::Slots{}; }, "out"},
    {"NoPitch",
     [](Gemm& g) {
       RowMap& rows = std::get<placement::Owners>(g.out.form).rows;
       rows.pitch = 0;
     },
     "out: a tile of 2 rows may have rows of two owners; expected a pitch of whole tiles, not 0"},
    {"OddPitch",
     [](Gemm& g) {
       RowMap& rows = std::get<placement::Owners>(g.out.form).rows;
       rows.pitch = 5;
     },
     "out: a tile of 2 rows may have rows of two owners; expected a pitch of whole tiles, not 5"},
    {"RowsBeyondTheShard",
     [](Gemm& g) {
       RowMap& rows = std::get<placement::Owners>(g.out.form).rows;
       rows.base = 1;
     },
     "out: "},
    {"PartOfAnotherRank", [](Gemm& g) { g.sums.from[1].slice.rank = 2; },
     "sums.from[1].slice: in the memory of rank 2, not the step's own"},
    {"PartOnSeveralRanks", [](Gemm& g) { std::get<placement::Matrix>(g.sums.from[0].form).ranks = {0, 1}; },
     "sums.from[0]: spreads over several ranks"},
    {"PartTooSmall", [](Gemm& g) { g.sums.from[1].slice.rows = 3; }, "sums.from[1].rows: reaches row 4 of 3"},
    {"PartTooNarrow", [](Gemm& g) { g.sums.from[0].slice.cols = 8; },
     "sums.from[0].slice: 8 columns, but 12 are placed"},
    {"PartByIndex", [](Gemm& g) { g.sums.from[0].form = placement::Indexed{g.sums.from[0].slice}; },
     "sums.from[0]: indexed; expected rows of a matrix"},
    {"SumsOverParts", [](Gemm& g) { g.sums.to[0] = g.sums.from[1]; },
     "sums.to[0]: sums are stored to 'staging', where parts lie"},
    {"SumsToAnInput",
     [](Gemm& g) {
       Placement& to = g.sums.to[0];
       to.slice = g.b;
     },
     "sums.to[0].slice: stores to 'b', an input of the user"},
    {"NoPlace", [](Gemm& g) { g.sums.to.clear(); }, "sums.to: no place for the sums"},
    {"PlaceTwice", [](Gemm& g) { g.sums.to.push_back(g.sums.to[0]); },
     "sums.to[1]: stored to 'out' of rank 1 twice"},
    {"OtherRowsInAPlace",
     [](Gemm& g) {
       g.sums.to.push_back(g.sums.to[0]);
       RowMap& rows = std::get<placement::Matrix>(g.sums.to[1].form).rows;
       rows.limit -= 1;
     },
     "sums.to[1]: other rows than in the first place"},
    {"OwnersWithoutARank",
     [](Gemm& g) {
       RowMap& rows = std::get<placement::Owners>(g.out.form).rows;
       rows.without = 3;
     },
     "out: leaves out shard 3, so own tiles cannot be told"},
    {"OtherTilesAwaitParts", [](Gemm& g) { g.gates.back().targets.front() = 1; },
     "gates[0].targets: 1 for group 0, which has "},
};

INSTANTIATE_TEST_SUITE_P(Plans, MalformedSums, testing::ValuesIn(cases),
                         [](const auto& test) { return test.param.name; });

TEST(TileSums, OnlyProductsAwaitParts) {
  Plan plan =
      plan_fused(own_sums_problem(Op::gemm_reducescatter, 3), own_sums_machine(3), {.sums = SumsIn::pass})
          .value();
  for (Step& step : plan.ranks[0].lanes[0].steps)
    if (auto* pass = std::get_if<Elementwise>(&step)) pass->gates.front().of_parts = true;
  const auto found = malformed(plan);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, HasSubstr("gates[0].of_parts: no tile of the step is a sum of parts"));
}

}  // namespace
}  // namespace shingle::tile_sums_test
