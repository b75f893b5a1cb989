#include "shingle/plan/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "sample_plans.hpp"
#include "shingle/base/error.hpp"
#include "shingle/verify/wellformed.hpp"

namespace shingle::plan_json_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

/// The first `from` replaced by `to`; fails where there is none.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::string sample() {
  return to_json(test::all_steps(), -1);
}

/// What reading the sample with one replacement says.
std::string error(const std::string& from, const std::string& to) {
  try {
    plan_from_json(replaced(sample(), from, to));
  } catch (const InvalidArgument& e) {
    EXPECT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos);
    return e.what();
  }
  return "";
}

TEST(PlanJson, RoundTripsEveryStep) {
  const Plan plan = test::all_steps();
  for (const int indent : {-1, 0, 1, 4}) {
    const std::string text = to_json(plan, indent);
    EXPECT_EQ(plan_from_json(text), plan);
    EXPECT_EQ(to_json(plan_from_json(text), indent), text);
  }
}

TEST(PlanJson, RoundTripsWhatPlannersWrite) {
  for (const int world : {1, 3})
    for (const Plan& plan : test::planned(world))
      EXPECT_EQ(plan_from_json(to_json(plan)), plan) << describe(plan.work);
}

TEST(PlanJson, KeepsClosedForms) {
  Problem p;
  p.op = Op::gemm_allreduce;
  p.world = 2;
  p.m = p.n = p.k = 1 << 20;
  Machine machine;
  machine.workers = 128;
  const Plan plan = plan_signal(p, machine, {.group_waves = {1 << 16}}).value();  // 2^23 tiles
  const std::string text = to_json(plan);
  EXPECT_LT(text.size(), 8000u);
  EXPECT_EQ(plan_from_json(text), plan);
}

TEST(PlanJson, OneLineOrLaidOut) {
  EXPECT_EQ(sample().find('\n'), std::string::npos);
  const std::string text = to_json(test::all_steps());
  EXPECT_THAT(text, AllOf(StartsWith("{\n \"format\": \"shingle-plan\",\n \"version\": 1,\n"),
                          HasSubstr("\"world\": 2")));
  std::size_t longest = 0, begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    longest = std::max(longest, end - begin);
  EXPECT_LE(longest, 130u);
}

TEST(PlanJson, LongListsAreFilled) {
  Problem p;
  p.op = Op::gemm_alltoall;
  p.world = 2;
  p.m = 5000, p.n = p.k = 8;
  std::vector<std::vector<std::int32_t>> dest(2, std::vector<std::int32_t>(5000, 1));
  p.routing = std::make_shared<const Routing>(dest);
  const std::string text = to_json(p);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 250);
  EXPECT_EQ(problem_from_json(text), p);
}

TEST(PlanJson, FloatsAreShortAndExact) {
  Problem p;
  p.m = p.n = p.k = 1;
  p.norm = {true, false, 1e-6f};
  EXPECT_THAT(to_json(p, -1), HasSubstr("\"epsilon\":1e-06"));
  for (const float epsilon : {0.0f, 1e-5f, 0.1f, 1.0f / 3, std::nextafterf(1e-5f, 1), 3.4e38f, 1e-45f}) {
    p.norm.epsilon = epsilon;
    EXPECT_EQ(problem_from_json(to_json(p)), p) << epsilon;
  }
}

TEST(PlanJson, WritingNeverThrows) {
  Plan plan = test::all_steps();
  plan.rounding = "\xff\xfe";
  plan.ranks[0].lanes[0].name = "a\"\n";
  plan.problem().norm.epsilon = std::nanf("");
  EXPECT_NO_THROW(to_json(plan));
  EXPECT_NO_THROW(to_json(Plan{}));
}

TEST(ProblemJson, RoundTripsAndValidates) {
  const Problem p = test::all_steps().problem();
  EXPECT_EQ(problem_from_json(to_json(p)), p);
  EXPECT_THAT([] { problem_from_json(R"({"op":"gemm","world":1,"m":0,"n":1,"k":1,"dtype":"f32"})"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("m = 0 is outside")));
  EXPECT_THAT([] { problem_from_json(R"({"op":"gemm","world":1,"m":1,"n":1,"k":1,"dtype":"f64"})"); },
              ThrowsMessage<InvalidArgument>("dtype: \"f64\" is none of f32, bf16, f16, i32"));
}

TEST(ProblemJson, SlotsFollowFromTheirCapacity) {
  const Problem p = with_m({.op = Op::moe, .world = 2, .n = 4, .k = 4, .inner = 4, .experts = {4, 2, 3}}, 5);
  const std::string text = to_json(p);
  EXPECT_THAT(text, Not(HasSubstr("routing")));
  EXPECT_EQ(problem_from_json(text), p);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << text;
    return changed.replace(at, from.size(), to);
  };
  const auto refuses = [](const std::string& json, const char* why) {
    EXPECT_THAT([&] { problem_from_json(json); }, ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refuses(with("}", R"(},"routing":[[0],[1]])"), "routing: is given beside a capacity");
  refuses(with(R"("capacity":3)", R"("capacity":2000000000)"),
          "experts: capacity = 2000000000 is outside [1, ");
  refuses(with(R"("capacity":3)", R"("capacity":-3)"), "experts.capacity: -3 is outside [0, 2147483647]");
}

TEST(ParamsJson, AreFlagsWithTheirValues) {
  const ParamList params{{"groups", "1,2,4"}, {"helpers", "8"}, {"one-shot", ""}, {"tile", "128x256"}};
  const std::string text = R"({"groups":"1,2,4","helpers":8,"one-shot":true,"tile":"128x256"})";
  EXPECT_EQ(to_json(params, -1), text);
  EXPECT_EQ(params_from_json(text), params);
  EXPECT_EQ(params_from_json(to_json(ParamList{})), ParamList{});
}

/// Plans of older versions have fields instead of flags. Params are a record, so any key is read.
TEST(ParamsJson, OfOlderPlansAreKeptAsText) {
  EXPECT_THAT(
      params_from_json(
          R"({"tile_rows":128,"order":{"swizzle":2},"group_waves":[1,2],"pull":false,"one_shot":true})"),
      UnorderedElementsAre(Param{"tile_rows", "128"}, Param{"order", R"({"swizzle":2})"},
                           Param{"group_waves", "[1,2]"}, Param{"one_shot", ""}));
}

TEST(ParamsJson, IsAnObject) {
  EXPECT_EQ(error(R"("params":{)", R"("params":[],"x":{)"), "params: expected an object, found an array");
  EXPECT_EQ(error(R"("comm-workers":1)", R"("comm-workers":"\n")"),
            "params.comm-workers: holds control characters");
}

TEST(PlanJsonErrors, NameThePath) {
  EXPECT_EQ(error(R"("target":1)", R"("target":-1)"),
            "ranks[0].lanes[1].steps[0].target: -1 is outside [0, 4294967295]");
  EXPECT_EQ(error(R"("target":1)", R"("target":"1")"),
            "ranks[0].lanes[1].steps[0].target: expected a whole number, found \"1\"");
  EXPECT_EQ(error(R"("target":1)", R"("target":1.0)"),
            "ranks[0].lanes[1].steps[0].target: expected a whole number, found 1.0");
  EXPECT_EQ(error(R"("target":1)", R"("target":18446744073709551616)"),
            "ranks[0].lanes[1].steps[0].target: expected a whole number, found 1.8446744073709552e+19");
  EXPECT_EQ(error(R"("target":1)", R"("goal":1)"), "ranks[0].lanes[1].steps[0]: missing key 'target'");
  EXPECT_EQ(error(R"("target":1)", R"("target":1,"extra":[])"),
            "ranks[0].lanes[1].steps[0]: unknown key \"extra\"; accepted: step, counter, target");
  EXPECT_EQ(
      error(R"("kind":"slots")", R"("kind":"slots","parts":1)"),
      "ranks[1].lanes[0].steps[0].from[0]: unknown key \"parts\"; accepted: kind, slice, ends, bases, ranks");
  EXPECT_EQ(error(R"("step":"await")", R"("step":"wait")"),
            "ranks[0].lanes[1].steps[0].step: unknown step \"wait\"");
  EXPECT_EQ(error(R"("kind":"slots")", R"("kind":"slotz")"),
            "ranks[1].lanes[0].steps[0].from[0].kind: \"slotz\" is none of matrix, slots, subtiles, pools, "
            "routed, owners, returned, indexed");
  EXPECT_EQ(error(R"("workers":4)", R"("workers":{})"), "workers: expected a whole number, found an object");
  EXPECT_EQ(error(R"("transpose_a":true)", R"("transpose_a":1)"),
            "problem.transpose_a: expected true or false, found 1");
  EXPECT_EQ(error(R"("epsilon":1e-06)", R"("epsilon":1e40)"),
            "problem.norm.epsilon: expected a number, found 1e+40");
  EXPECT_EQ(error(R"("axis":"n")", R"("axis":"k")"),
            "ranks[0].lanes[0].steps[1].grid.loops[0].axis: \"k\" is none of m, n");
  EXPECT_EQ(error(R"("loops":[)",
                  R"("loops":[{"axis":"m","extent":1},{"axis":"m","extent":1},{"axis":"m","extent":1},)"
                  R"({"axis":"m","extent":1},)"
                  R"({"axis":"m","extent":1},{"axis":"m","extent":1},{"axis":"m","extent":1},)"),
            "ranks[0].lanes[0].steps[1].grid.loops: 9 loops, at most 8");
  EXPECT_EQ(error(R"("buffers":[)", R"("buffers":{},"x":[)"), "buffers: expected an array, found an object");
  EXPECT_EQ(error(R"({"counter":0,"rank":0,"entry":1})", "3"),
            "ranks[0].lanes[1].steps[0].counter: expected an object, found 3");
  EXPECT_EQ(error(R"("name":"alone")", R"("name":7)"), "communicators[1].name: expected a text, found 7");
}

TEST(PlanJsonErrors, NameRankLaneAndStep) {
  EXPECT_EQ(error(R"({"counter":0,"rank":0,"entry":1})", R"({"counter":7,"rank":0})"),
            "rank 0, lane wire, step 0 (await): counter: 7 is none of the plan's 2 counters");
  EXPECT_THAT(error(R"("routing":[[0,)", R"("routing":[[2,)"),
              StartsWith("problem.routing: routing: row 0 of rank 0 goes to rank 2"));
}

TEST(PlanJsonErrors, OtherFilesAndVersions) {
  EXPECT_EQ(error(R"("version":1)", R"("version":2)"),
            "version: 2 is not 1, the version that this program reads");
  EXPECT_EQ(error("shingle-plan", "tiles"), "format: expected 'shingle-plan', found \"tiles\"");
  EXPECT_EQ(error(R"("format":"shingle-plan",)", ""), "missing key 'format'");
  EXPECT_THAT([] { plan_from_json("[]"); },
              ThrowsMessage<InvalidArgument>("expected an object, found an array"));
}

TEST(PlanJsonErrors, NotJson) {
  EXPECT_THAT([] { plan_from_json(""); },
              ThrowsMessage<InvalidArgument>(StartsWith("not JSON: parse error at line 1")));
  EXPECT_THAT([] { plan_from_json(sample() + "}"); },
              ThrowsMessage<InvalidArgument>(StartsWith("not JSON: ")));
  EXPECT_THAT([] { plan_from_json("{\"format\": \"\xff\"}"); },
              ThrowsMessage<InvalidArgument>(StartsWith("not JSON: ")));
  EXPECT_THAT([] { plan_from_json("{\"version\": 1e999}"); },
              ThrowsMessage<InvalidArgument>(StartsWith("not JSON: ")));
  EXPECT_EQ(error(R"("workers":4)", R"("workers":4,"workers":5)"),
            "key \"workers\" given twice in one object");
}

TEST(PlanJsonErrors, NestingIsBounded) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text = R"({"format":)";
    for (int i = 0; i < 200000; ++i) text += open;
    EXPECT_THAT([&] { plan_from_json(text); },
                ThrowsMessage<InvalidArgument>("JSON nested deeper than 32 levels"));
  }
}

TEST(PlanJsonErrors, UntrustedTextIsQuotedAndCut) {
  const std::string message =
      error(R"("step":"await")", R"("step":"a\n\u001b[31m\u00e4)" + std::string(5000, 'x') + '"');
  EXPECT_THAT(message, HasSubstr(R"(unknown step "a\n\u001b[31m\u00e4xxx)"));
  EXPECT_LT(message.size(), 200u);
}

}  // namespace
}  // namespace shingle::plan_json_test
