// Pages and their figures: complete, escaped, and with numbers where they belong.
#include "report/report.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "shingle/planner/planner.hpp"
#include "support/page.hpp"

namespace shingle::report_test {
namespace {

using test::count_of;
using testing::HasSubstr;
using testing::Not;

constexpr double infinity = std::numeric_limits<double>::infinity();

void expect_page(const std::string& page) {
  const auto scratch = std::filesystem::temp_directory_path() / fmt::format("report_{}.html", getpid());
  test::expect_stands_alone(page, scratch.string());
  std::filesystem::remove(scratch);
}

Timeline timeline(const std::string& title, int world = 2) {
  Problem p;
  p.op = Op::gemm_reducescatter;
  p.world = world;
  p.m = p.n = p.k = 64;
  Machine machine;
  machine.tile_rows = machine.tile_cols = 16;
  Timeline drawn = schematic(plan_signal(p, machine, {}).value());
  drawn.title = title;
  return drawn;
}

std::vector<Curve> curves() {
  return {{Traffic::allreduce, 2, 0, {{65536, 10}, {1048576, 20}, {16777216, 100}}},
          {Traffic::allreduce, 8, 0, {{65536, 20}, {1048576, 30}, {16777216, 150}}},
          {Traffic::alltoall, 8, 4, {{65536, 12}, {16777216, 120}}}};
}

/// Something in each section; `word` wherever text can stand.
Report full(const std::string& word) {
  Report report;
  report.title = word;
  report.facts = {word};
  report.tables = {
      {.title = word, .head = {word, "time"}, .rows = {{word, "1 us"}}, .words = 1, .notes = {word}}};
  report.predictions = {{word, 100, 110}, {word, 210, 200}};
  report.heat_maps = {{word, {{1024, 64, 1.5}, {4096, 64, 0.75}}}};
  report.timelines = {{word, {timeline(word)}}};
  report.curves = curves();
  return report;
}

TEST(Report, HasASectionForWhatThereIs) {
  const std::string page = to_html(full("word"));
  expect_page(page);
  EXPECT_EQ(count_of(page, "<section>"), 5u);
  EXPECT_EQ(count_of(page, "<svg "), 5u);
  for (const char* part :
       {"<td class=\"word\">word</td><td>1 us</td>", "Predicted against measured", "Speed-up by size",
        "Timelines", "Bandwidth of the machine", "prefers-color-scheme: dark"})
    EXPECT_THAT(page, HasSubstr(part));
  const std::string empty = to_html({.title = "nothing"});
  expect_page(empty);
  EXPECT_EQ(count_of(empty, "<section>"), 0u);
  EXPECT_EQ(page, to_html(full("word")));
}

TEST(Report, EscapesAllText) {
  const std::string page = to_html(full("<b a=\"1\">&\x01</b>"));
  expect_page(page);
  EXPECT_THAT(page, Not(HasSubstr("<b a")));
  EXPECT_GE(count_of(page, "&lt;b a=&quot;1&quot;&gt;&amp;\uFFFD&lt;/b&gt;"), 10u);
}

TEST(Report, ShowsTheFirstRanksOfMany) {
  Report report;
  report.timelines = {{"many", {timeline("eight", 8)}}};
  const std::string page = to_html(report);
  EXPECT_THAT(page, HasSubstr("rank 3 compute"));
  EXPECT_THAT(page, Not(HasSubstr("rank 4 compute")));
  EXPECT_THAT(page, HasSubstr("of the first 4 ranks"));
}

TEST(HeatMap, PutsMediansIntoBinsOfPowersOfTwo) {
  const std::vector<SpeedupPoint> points{{1 << 20, 4096, 1.2},
                                         {1 << 20, 4000, 1.4},
                                         {(1 << 20) + 99, 4200, 1.3},
                                         {1 << 22, 1024, 0.5},
                                         {1 << 22, 4096, 1}};
  const std::string svg = heat_map_svg(points);
  EXPECT_THAT(svg, HasSubstr("K 4K, M·N 1M: 1.30x, median of 3"));
  EXPECT_THAT(svg, HasSubstr(">0.50</text>"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#b2182b\""));  // half as fast
  EXPECT_THAT(svg, HasSubstr("fill=\"#f3f0eb\""));  // as fast
  for (const char* label : {">1M<", ">2M<", ">4M<", ">1K<", ">2K<", ">4K<"})
    EXPECT_THAT(svg, HasSubstr(label));
}

TEST(HeatMap, CoarsensWhereSizesAreFarApart) {
  const std::vector<SpeedupPoint> points{{256, 1, 1.1}, {std::exp2(40.0), std::exp2(30.0), 1.2}};
  const std::string svg = heat_map_svg(points);
  EXPECT_THAT(svg, HasSubstr(">256<"));
  EXPECT_THAT(svg, HasSubstr(">1T<"));
  EXPECT_LE(count_of(svg, "text-anchor=\"middle\""), 40u);
}

TEST(Figures, LeaveOutWhatHasNoPlace) {
  const std::vector<SpeedupPoint> points{{0, 64, 1}, {64, 64, infinity}, {64, 64, -1}};
  EXPECT_EQ(count_of(heat_map_svg(points), "<rect"), 0u);
  const std::vector<TimePair> pairs{{"zero", 0, 1}, {"endless", 1, infinity}};
  for (const std::string& svg : {prediction_svg(pairs), error_cdf_svg(pairs), bandwidth_svg({})}) {
    EXPECT_THAT(svg, Not(HasSubstr("<text")));
    EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << svg;
  }
  Report report;
  report.predictions = pairs;
  EXPECT_THAT(to_html(report), Not(HasSubstr("Predicted against")));
}

TEST(Figures, StandASingleValue) {
  const std::vector<TimePair> pairs{{"exact", 100, 100}};
  for (const std::string& svg :
       {prediction_svg(pairs), error_cdf_svg(pairs), heat_map_svg(std::vector<SpeedupPoint>{{64, 64, 1}}),
        bandwidth_svg(std::vector<Curve>{{Traffic::allgather, 4, 0, {{1024, 5}}}})}) {
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_GT(count_of(svg, "<text"), 4u);
  }
}

TEST(Bandwidth, IsABusBandwidthInAPanelACollective) {
  const std::string svg = bandwidth_svg(curves());
  EXPECT_THAT(svg, HasSubstr(">allreduce</text>"));
  EXPECT_THAT(svg, HasSubstr(">alltoall</text>"));
  // 2 (n - 1) / n times 16 MiB in 100 us.
  EXPECT_THAT(svg, HasSubstr("allreduce, 2 ranks: 16.0 MiB at 168 GB/s, 100 us"));
  EXPECT_THAT(svg, HasSubstr(">8 ranks, 4 workers</text>"));
  EXPECT_EQ(count_of(svg, "<circle"), 8u);
}

TEST(ErrorCdf, RisesToAllAtTheLargestError) {
  const std::vector<TimePair> pairs{{"a", 101, 100}, {"b", 98, 100}, {"c", 104, 100}, {"d", 92, 100}};
  const std::string svg = error_cdf_svg(pairs);
  EXPECT_THAT(svg, HasSubstr("median 2 %"));
  EXPECT_THAT(svg, HasSubstr("p90 8 %"));
}

TEST(Quantile, IsOneOfTheValues) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 2, 3}, 0.5), 2);
  EXPECT_EQ(quantile({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9), 9);
  EXPECT_EQ(quantile({2, 1}, 1), 2);
  EXPECT_EQ(quantile({5}, 0.1), 5);
}

}  // namespace
}  // namespace shingle::report_test
