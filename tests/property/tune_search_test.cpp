// The search of wave groups against trying all partitions, on random curves and waves.
#include "tune/search.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "shingle/base/error.hpp"
#include "shingle/planner/planner.hpp"
#include "support/random_problem.hpp"
#include "tune/predict.hpp"

namespace shingle::tune_search_test {
namespace {

using namespace test;

/// Also with curves that fall, waves that send nothing, and several links.
template <class Source>
WaveModel random_model(Source& draw, std::int64_t waves) {
  WaveModel model;
  Curve curve;
  for (double bytes = 1; bytes < 1e4; bytes *= static_cast<double>(draw.size(2, 30)))
    curve.samples.push_back({bytes, static_cast<double>(draw.size(1, 60))});
  model.machine.curves = {curve};
  model.signal_us = static_cast<double>(draw.size(0, 5));
  model.computed_us = {static_cast<double>(draw.size(0, 9))};
  const double wave_us = static_cast<double>(draw.size(1, 40));
  for (std::int64_t w = 0; w < waves; ++w) model.computed_us.push_back(model.computed_us.back() + wave_us);
  model.slowdown = static_cast<double>(draw.size(0, 2)) / 3;
  model.sync_us = static_cast<double>(draw.size(0, 2));
  model.latency_us = static_cast<double>(draw.size(0, 9));
  if (draw.size(0, 1) == 1) {
    model.restore_us = static_cast<double>(draw.size(0, 12));
    model.restored_us = {0};
    for (std::int64_t w = 0; w < waves; ++w)
      model.restored_us.push_back(model.restored_us.back() + static_cast<double>(draw.size(0, 9)));
  }
  const std::int64_t links = draw.size(1, 3);
  for (std::int64_t link = 0; link < links; ++link) {
    std::vector<double> bytes{0};
    for (std::int64_t w = 0; w < waves; ++w)
      bytes.push_back(bytes.back() + static_cast<double>(draw.size(0, 500)));
    model.bytes.push_back(bytes);
  }
  return model;
}

std::int64_t sum(const std::vector<std::int64_t>& groups) {
  return std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
}

bool within(const GroupBounds& bounds, const std::vector<std::int64_t>& groups) {
  return (bounds.first == 0 || groups.front() <= bounds.first) &&
         (bounds.last == 0 || groups.back() <= bounds.last);
}

TEST(Search, FindsWhatTryingAllFinds) {
  EXPECT_TRUE(rc::check([] {
    Drawn draw;
    const WaveModel model = random_model(draw, draw.size(1, 12));
    const GroupBounds bounds{draw.size(0, 5), draw.size(0, 5)};
    const Partition found = search(model, bounds), best = search_exhaustively(model, bounds);
    RC_ASSERT(found.us == best.us);
    RC_ASSERT(found.group_waves.size() == best.group_waves.size());
    RC_ASSERT(found.candidates == best.candidates);
    RC_ASSERT(found.us == predict_us(model, found.group_waves));
    RC_ASSERT(within(bounds, found.group_waves));
  }));
}

TEST(Search, IsNeverSlowerThanEqualGroupsNorWithFewerBounds) {
  EXPECT_TRUE(rc::check([] {
    Drawn draw;
    const std::int64_t waves = draw.size(1, 80);
    const WaveModel model = random_model(draw, waves);
    const Partition free = search(model, {0, 0});
    RC_ASSERT(sum(free.group_waves) == waves);
    for (std::int64_t size = 1; size <= waves; ++size)
      RC_ASSERT(free.us <= predict_us(model, equal_groups(waves, size)));
    const GroupBounds bounds{draw.size(1, 9), draw.size(1, 9)};
    const Partition bounded = search(model, bounds);
    RC_ASSERT(free.us <= bounded.us);
    RC_ASSERT(bounded.us <= search(model, {1, 1}).us);
  }));
}

TEST(Search, NeverGetsFasterWhereSomethingGetsSlower) {
  EXPECT_TRUE(rc::check([] {
    Drawn draw;
    const WaveModel model = random_model(draw, draw.size(1, 40));
    const double us = search(model).us;
    WaveModel slower = model;
    for (double& computed : slower.computed_us) computed *= 1.25;
    RC_ASSERT(search(slower).us >= us);
    slower = model;
    for (Sample& sample : slower.machine.curves[0].samples) sample.us *= 1.25;
    RC_ASSERT(search(slower).us >= us);
    slower = model;
    slower.signal_us += 1;
    RC_ASSERT(search(slower).us >= us);
  }));
}

TEST(Search, BoundsHoldWithMoreWavesThanMayEndAGroup) {
  Dice dice(7);
  for (const std::int64_t waves : {fine_waves - 1, fine_waves, fine_waves + 1, 3 * fine_waves + 17}) {
    const WaveModel model = random_model(dice, waves);
    for (const GroupBounds bounds :
         {GroupBounds{}, GroupBounds{0, 0}, GroupBounds{1, 1}, GroupBounds{7, 2}}) {
      const Partition found = search(model, bounds);
      EXPECT_EQ(sum(found.group_waves), waves);
      EXPECT_TRUE(within(bounds, found.group_waves));
      EXPECT_EQ(found.us, predict_us(model, found.group_waves));
    }
  }
}

TEST(Search, ItsGroupsCanBePlanned) {
  EXPECT_TRUE(rc::check([] {
    Drawn draw;
    Problem problem = random_problem(draw, {.world = 4});
    Machine machine;
    machine.workers = static_cast<std::int32_t>(draw.size(2, 6));
    machine.collective_workers = 1;
    machine.tile_rows = machine.tile_cols = 16;
    machine.tiles = {{16, 16, 1, 0.1}};
    for (const Traffic traffic : {Traffic::allreduce, Traffic::reducescatter, Traffic::alltoall})
      machine.curves.push_back({traffic, 4, 0, {{100, 5}, {1e5, 50}}});
    const auto model = wave_model(problem, machine);
    RC_PRE(static_cast<bool>(model));
    RC_PRE(model.value().waves() > 0);
    const Partition found = search(model.value());
    RC_ASSERT(static_cast<bool>(plan_signal(problem, machine, {.group_waves = found.group_waves})));
  }));
}

TEST(Search, RefusesWhatIsNoSearch) {
  Dice dice(1);
  const WaveModel model = random_model(dice, 30);
  EXPECT_THROW(search_exhaustively(model), InvalidArgument);
  EXPECT_THROW(search(model, {-1, 2}), InvalidArgument);
  EXPECT_THROW(search(WaveModel{.computed_us = {0}}), InvalidArgument);
  EXPECT_THROW(equal_groups(4, 0), InvalidArgument);
  EXPECT_EQ(equal_groups(7, 3), (std::vector<std::int64_t>{3, 3, 1}));
}

}  // namespace
}  // namespace shingle::tune_search_test
