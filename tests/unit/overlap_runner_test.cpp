// Overlaps measured on threads: what comes back is of the configs' plan, and a search can go on it.
#include "api/overlap_runner.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "shingle/api/registry.hpp"
#include "support/overlap_run.hpp"
#include "tune/co_tuning.hpp"

namespace shingle::overlap_runner_test {
namespace {

TEST(OverlapRunner, TellsWhatASearchWantsToKnow) {
  const auto world = make_world(2, {.link = {0.5, 20}, .workers_per_rank = 3});
  OverlapRunner runner(*world, test::sample_overlap());
  const cotune::Measurement measured = runner.measure({});
  EXPECT_GT(measured.compute_us, 0);
  EXPECT_GT(measured.makespan_us, 0);
  ASSERT_EQ(measured.communication_us.size(), 4);
  for (std::size_t j = 0; j < 4; ++j) EXPECT_GE(measured.communication_us[j], 20) << "a link of 20 us";
  const std::vector<CollectiveConfig> engines(4, {.channels = 1, .transport = Transport::engines});
  const cotune::Measurement by_engines = runner.measure(engines);
  EXPECT_GT(by_engines.compute_us, 0);
  ASSERT_EQ(by_engines.communication_us.size(), 4);
  for (const double us : by_engines.communication_us) EXPECT_GT(us, 0);
  const std::vector<CollectiveConfig> too_many(4, {.channels = 3});
  EXPECT_TRUE(std::isinf(runner.measure(too_many).makespan_us));
}

TEST(OverlapRunner, IsSearchedOn) {
  const auto world = make_world(2, {.workers_per_rank = 4});
  OverlapRunner runner(*world, test::sample_overlap());
  cotune::Space space;
  space.channels = {1, 2, 5};  // the last does not run
  const auto measure = [&](const std::vector<CollectiveConfig>& configs) { return runner.measure(configs); };
  for (const auto method : {cotune::Method::alone, cotune::Method::together}) {
    const CoTuned found =
        co_tune(test::sample_overlap(), measure, method, space, {.least_gain = 0.05, .repeats = 2});
    EXPECT_EQ(found.configs.size(), 4);
    EXPECT_TRUE(std::isfinite(found.measured.makespan_us)) << cotune::name(method);
  }
}

}  // namespace
}  // namespace shingle::overlap_runner_test
