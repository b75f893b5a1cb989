// Timelines: of plans laid out without running, of runs, as Chrome traces and as pictures.
#include "report/trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "api/workspace.hpp"
#include "shingle/api/registry.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/sim/simulate.hpp"

namespace shingle::trace_test {
namespace {

Problem problem_of(Op op) {
  Problem p;
  p.op = op;
  p.world = 2;
  p.m = 512;
  p.n = 256;
  p.k = 32;
  return p;
}

Machine machine() {
  Machine machine;
  machine.tile_rows = 64;
  machine.tile_cols = 64;
  return machine;
}

Plan plan_of(Op op, Mechanism mechanism) {
  return make_plan(problem_of(op), machine(), default_params(mechanism)).value();
}

double end_us(const Timeline& timeline) {
  return std::ranges::max_element(timeline.spans, {}, &Span::end_us)->end_us;
}

TEST(Chart, ShowsGroupsInOrderAndTheirShares) {
  const Timeline timeline = schematic(plan_of(Op::gemm_allreduce, Mechanism::signal));
  const std::string chart = to_chart(timeline, 1, 80, 40);
  const auto groups = timeline.plan.counters[0].growth[0].size();
  for (const char* lane : {"compute", "communicate"}) {
    const auto begin = chart.find('|', chart.find(lane)) + 1;
    const std::string cells = chart.substr(begin, 40);
    EXPECT_EQ(chart[begin + 40], '|') << chart;
    std::size_t last = 0;
    for (std::size_t g = 0; g < groups; ++g) {
      const auto at = cells.find("0123456789abcdefghijklmnopqrstuvwxyz"[g]);
      ASSERT_NE(at, std::string::npos) << "group " << g << "\n" << chart;
      EXPECT_GE(at, last) << chart;
      last = at;
    }
  }
  EXPECT_NE(chart.find("allreduce "), std::string::npos) << chart;
  for (const char* mark : {"\n  0-9 a-z ", "\n  # ", "\n  = ", "\n  . "})
    EXPECT_NE(chart_legend().find(mark), std::string::npos) << mark;
}

TEST(Chart, PutsSharesThatDoNotFitOnTheNextLine) {
  const Timeline timeline = schematic(plan_of(Op::gemm_allreduce, Mechanism::signal));
  const auto lines = [&](std::size_t page) { return std::ranges::count(to_chart(timeline, 0, page), '\n'); };
  EXPECT_EQ(lines(200), 3) << "a title and two lanes";
  EXPECT_EQ(lines(80), 5);
}

TEST(Schematic, KeepsLanesInOrder) {
  for (const Op op : {Op::gemm_allreduce, Op::gemm_reducescatter, Op::allgather_gemm})
    for (const PlannerEntry& entry : planners()) {
      const auto plan = make_plan(problem_of(op), machine(), default_params(entry.mechanism));
      if (!plan) continue;
      const Timeline timeline = schematic(*plan);
      ASSERT_FALSE(timeline.spans.empty());
      std::map<std::pair<int, int>, Span> last;
      for (const Span& span : timeline.spans) {
        EXPECT_LT(span.begin_us, span.end_us);
        const auto before = last.find({span.rank, span.lane});
        if (before != last.end()) {
          EXPECT_LE(before->second.end_us, span.begin_us);
          EXPECT_LE(before->second.step, span.step);
        }
        last[{span.rank, span.lane}] = span;
      }
      std::size_t lanes = 0;
      for (const RankPlan& rank : plan->ranks)  // a lane that only waits and tells takes no time
        lanes += static_cast<std::size_t>(std::ranges::count_if(rank.lanes, [](const Lane& lane) {
          return std::ranges::any_of(lane.steps, [](const Step& step) {
            return !std::holds_alternative<Await>(step) && !std::holds_alternative<Notify>(step);
          });
        }));
      EXPECT_EQ(last.size(), lanes);
    }
}

TEST(Schematic, ShowsThatOverlapHelps) {
  const double sequential = end_us(schematic(plan_of(Op::gemm_allreduce, Mechanism::sequential)));
  const double chunked = end_us(schematic(plan_of(Op::gemm_allreduce, Mechanism::chunked)));
  EXPECT_LT(chunked, 0.8 * sequential);
}

TEST(Schematic, CollectivesMeet) {
  const Timeline timeline = schematic(plan_of(Op::gemm_reducescatter, Mechanism::signal));
  std::map<int, std::set<double>> begins;
  for (const Span& span : timeline.spans)
    if (span.lane == 1) begins[span.step].insert(span.begin_us);
  EXPECT_GT(begins.size(), 1u);
  for (const auto& [step, times] : begins)
    EXPECT_EQ(times.size(), 1u) << "step " << step << " begins at once on both ranks";
}

TEST(Schematic, LinksCarryBothDirectionsAtOnce) {
  const Timeline timeline = schematic(plan_of(Op::gemm_reducescatter, Mechanism::ring), {0, 0, 2});
  int exchanges = 0;
  for (const Span& span : timeline.spans) {
    const Step& step = timeline.plan.ranks[span.rank].lanes[span.lane].steps[span.step];
    const auto* exchange = std::get_if<Exchange>(&step);
    ASSERT_TRUE(exchange) << "all else costs nothing";
    const Slice& slice = exchange->sends.at(0).slice;
    EXPECT_DOUBLE_EQ(span.end_us - span.begin_us, 2.0 * static_cast<double>(slice.rows * slice.cols));
    ++exchanges;
  }
  EXPECT_EQ(exchanges, 2 * std::get<RingParams>(params_of(timeline.plan)).slices);
}

TEST(GroupOfSpan, JoinsComputationAndCommunication) {
  for (const Mechanism mechanism : {Mechanism::signal, Mechanism::chunked}) {
    const Timeline timeline = schematic(plan_of(Op::gemm_allreduce, mechanism));
    std::map<int, std::set<int>> groups;  // by lane
    for (const Span& span : timeline.spans) groups[span.lane].insert(group_of_span(timeline.plan, span));
    EXPECT_EQ(groups[0], groups[1]) << name(mechanism);
    EXPECT_GT(groups[0].size(), 1u);
    EXPECT_FALSE(groups[1].contains(-1));
  }
}

TEST(ChromeTrace, HasATrackALaneAndRank) {
  const std::vector<Timeline> timelines{schematic(plan_of(Op::gemm_allreduce, Mechanism::sequential)),
                                        schematic(plan_of(Op::gemm_allreduce, Mechanism::signal))};
  const auto trace = nlohmann::json::parse(to_chrome_trace(timelines));
  std::set<std::pair<int, int>> named, used;
  std::size_t slices = 0;
  double last_of_first = 0, first_of_second = 1e18;
  for (const auto& event : trace.at("traceEvents")) {
    const std::pair<int, int> track{event.at("pid"), event.at("tid")};
    if (event.at("ph") == "M" && event.at("name") == "thread_name") named.insert(track);
    if (event.at("ph") != "X") continue;
    ++slices;
    used.insert(track);
    EXPECT_GE(event.at("ts").get<double>(), 0);
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_FALSE(event.at("name").get<std::string>().empty());
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    if (slices <= timelines[0].spans.size())
      last_of_first = std::max(last_of_first, end);
    else
      first_of_second = std::min(first_of_second, begin);
  }
  EXPECT_EQ(slices, timelines[0].spans.size() + timelines[1].spans.size());
  EXPECT_EQ(named, used);
  EXPECT_EQ(used.size(), 4u);
  EXPECT_GT(first_of_second, last_of_first);
}

TEST(ChromeTrace, OfARealRunHasItsSteps) {
  const auto world = make_world(2, {.backend = "host"});
  const Problem problem = problem_of(Op::gemm_reducescatter);
  const auto inputs = random_inputs(problem, 0);
  Workspace memory(*world, *inputs);
  Operator op(*world, problem, {.params = SignalParams{}});
  memory.bind(op);
  const std::vector<Timeline> run{{"run", op.plan(), op.run(1, true).spans}};
  std::set<std::string> categories;
  const auto trace = nlohmann::json::parse(to_chrome_trace(run));
  for (const auto& event : trace.at("traceEvents"))
    if (event.contains("cat")) categories.insert(event.at("cat"));
  EXPECT_TRUE(categories.contains("compute"));
  EXPECT_TRUE(categories.contains("communicate"));
}

TEST(Svg, DrawsEveryLaneOnOneScale) {
  const std::vector<Timeline> timelines{schematic(plan_of(Op::gemm_allreduce, Mechanism::sequential)),
                                        schematic(plan_of(Op::gemm_allreduce, Mechanism::signal))};
  const std::string svg = to_svg(timelines);
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  const auto count = [&](std::string_view word) {
    std::size_t found = 0;
    for (std::size_t at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("rank 1 communicate</text>"), 2u);
  EXPECT_EQ(count("<text "), count("</text>"));
  EXPECT_GT(count("<title>"), 4u);
  EXPECT_EQ(count("nan"), 0u);
}

/// Where the numbers of groups stand: by height, their left and right ends.
std::map<double, std::vector<std::pair<double, double>>> numbers_in(const std::string& svg) {
  std::map<double, std::vector<std::pair<double, double>>> found;
  std::istringstream lines(svg);
  for (std::string line; std::getline(lines, line);) {
    double x = 0, y = 0;
    int group = 0;
    if (std::sscanf(line.c_str(), R"(<text x="%lf" y="%lf" text-anchor="middle" fill="#ffffff">%d</text>)",
                    &x, &y, &group) != 3)
      continue;
    const double half = 3.4 * static_cast<double>(std::to_string(group).size());
    found[y].emplace_back(x - half, x + half);
  }
  return found;
}

TEST(Svg, NumbersOfGroupsDoNotOverlap) {
  Machine gpus = machine_from_spec(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
  const Problem p{.op = Op::gemm_reducescatter, .world = 8, .m = 8192, .n = 4096, .k = 2048};
  const Plan plan = make_plan(p, gpus, FusedParams{}).value();
  std::size_t numbers = 0;
  for (auto& [y, row] :
       numbers_in(to_svg(std::vector<Timeline>{{"fused", plan, simulate(plan, gpus).spans}}))) {
    numbers += row.size();
    std::ranges::sort(row);
    for (std::size_t i = 1; i < row.size(); ++i) EXPECT_LT(row[i - 1].second, row[i].first) << "at " << y;
  }
  EXPECT_GT(numbers, 20u);
}

TEST(Svg, StandsEmptyTimelines) {
  const std::vector<Timeline> timelines{
      {"nothing <yet>", plan_of(Op::gemm_allreduce, Mechanism::signal), {}}};
  EXPECT_NE(to_svg(timelines).find("nothing &lt;yet&gt;"), std::string::npos);
  EXPECT_NO_THROW(nlohmann::json::parse(to_chrome_trace(timelines)));
}

}  // namespace
}  // namespace shingle::trace_test
