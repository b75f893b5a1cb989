// The recurrence against examples by hand, and what it takes from problem and machine.
#include "tune/predict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "shingle/base/error.hpp"
#include "shingle/machine/profile.hpp"
#include "shingle/planner/planner.hpp"
#include "tune/search.hpp"

namespace shingle::tune_predict_test {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

/// Up to 10 bytes 5 us, from there 1 us for two bytes.
const Curve curve{Traffic::allreduce, 2, 0, {{10, 5}, {20, 10}, {40, 20}}};

/// Four waves of 10 us, the last of which sends half as much as the others' ten bytes.
WaveModel four_waves() {
  WaveModel model;
  model.machine.curves = {curve};
  model.computed_us = {3, 13, 23, 33, 43};
  model.bytes = {{0, 10, 20, 30, 35}};
  return model;
}

TEST(Predict, ByHandWhereComputationIsLonger) {
  const WaveModel model = four_waves();
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 1, 1, 1}), 48);  // 43, then latency
  EXPECT_DOUBLE_EQ(predict_us(model, {4}), 43 + 17.5);
  EXPECT_DOUBLE_EQ(predict_us(model, {2, 2}), 43 + 7.5);
}

TEST(Predict, ByHandWhereCommunicationIsLonger) {
  WaveModel model = four_waves();
  model.bytes = {{0, 40, 80, 120, 130}};  // 20 us a wave, the last 5 us
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 1, 1, 1}), 13 + 3 * 20 + 5);
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 3}), 43 + 45);  // the second waits for its waves, not for the first
  EXPECT_DOUBLE_EQ(predict_us(model, {2, 2}), 23 + 40 + 25);
}

TEST(Predict, ASignalIsHiddenBehindACollective) {
  WaveModel model = four_waves();
  model.signal_us = 2;
  EXPECT_DOUBLE_EQ(predict_us(model, {4}), 43 + 2 + 17.5);
  model.bytes = {{0, 40, 80, 120, 130}};
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 1, 1, 1}), 13 + 2 + 3 * 20 + 5) << "paid once";
}

TEST(Predict, ACollectiveBesideTheGemmTakesLonger) {
  WaveModel model = four_waves();
  model.slowdown = 0.5;
  EXPECT_DOUBLE_EQ(predict_us(model, {4}), 43 + 17.5) << "nothing is beside it";
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 1, 1, 1}), 43 + 5);
  model.bytes = {{0, 40, 80, 120, 130}};
  // From 13 on 30 us beside the GEMM, in which 20 of it pass: the first is through. Then 45.
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 3}), 43 + 45);
  EXPECT_DOUBLE_EQ(predict_us(model, {2, 2}), 43 + (40 - 20 / 1.5) + 25);
}

TEST(Predict, EachGroupMayBeRestoredByAKernelOfItsOwn) {
  WaveModel model = four_waves();
  model.signal_us = 1;
  model.restore_us = 4;
  model.restored_us = {0, 2, 4, 6, 7};
  // Passes follow the GEMM, and the last one its collective as well.
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 1, 1, 1}), 43 + 4 * 4 + 7);
  EXPECT_DOUBLE_EQ(predict_us(model, {4}), 43 + 1 + 17.5 + 4 + 7);
  EXPECT_DOUBLE_EQ(predict_us(model, {2, 2}), 43 + 1 + 7.5 + 4 + 3);
}

TEST(Predict, TheBusiestLinkOfEachGroupCounts) {
  WaveModel model = four_waves();
  model.bytes = {{0, 20, 20, 20, 20}, {0, 0, 20, 40, 80}};
  EXPECT_DOUBLE_EQ(model.send_us(0, 1), 10);
  EXPECT_DOUBLE_EQ(model.send_us(1, 2), 10);
  EXPECT_DOUBLE_EQ(model.send_us(0, 2), 10) << "20 on each, not 40 on one";
  EXPECT_DOUBLE_EQ(predict_us(model, {1, 1, 1, 1}), 43 + 20);
}

TEST(Predict, RefusesGroupsThatAreNotTheWaves) {
  const WaveModel model = four_waves();
  EXPECT_THROW(predict_us(model, {2, 1}), InvalidArgument);
  EXPECT_THROW(predict_us(model, {2, 3}), InvalidArgument);
  EXPECT_THROW(predict_us(model, {4, 0}), InvalidArgument);
  EXPECT_THROW(predict_us(model, {}), InvalidArgument);
}

TEST(Predict, BoundOfPerfectOverlap) {
  WaveModel lone = four_waves();
  EXPECT_DOUBLE_EQ(sequential_us(lone), 43 + 17.5);
  EXPECT_DOUBLE_EQ(bound_us(lone), 43 + 5) << "the GEMM is longer";
  lone.bytes = {{0, 40, 80, 120, 160}};
  EXPECT_DOUBLE_EQ(sequential_us(lone), 43 + 80);
  EXPECT_DOUBLE_EQ(bound_us(lone), 13 + 80) << "communication is longer";
}

/// 10 workers, 2 of them taken by collectives; a tile of 16×16 takes 5 + 0.1 K.
Machine machine() {
  Machine m;
  m.workers = 10;
  m.collective_workers = 2;
  m.tile_rows = m.tile_cols = 16;
  m.launch_us = 3;
  m.signal_us = 2;
  m.tiles = {{16, 16, 5, 0.1}};
  for (const Traffic traffic : {Traffic::allreduce, Traffic::reducescatter, Traffic::alltoall})
    m.curves.push_back({traffic, 2, 0, {{1000, 5}, {100000, 50}}});
  m.curves.push_back({Traffic::allreduce, 2, 2, {{1000, 10}, {100000, 100}}});
  return m;
}

Problem problem() {
  return {.op = Op::gemm_allreduce, .world = 2, .m = 72, .n = 40, .k = 50, .dtype = DType::bf16};
}

TEST(Waves, AreThoseOfThePlan) {
  // 5 × 3 tiles on 8 workers: two waves. The second ends with the last row of tiles, 8 rows high.
  const WaveModel model = wave_model(problem(), machine()).value();
  EXPECT_THAT(model.computed_us, ElementsAre(DoubleEq(3), DoubleEq(13), DoubleEq(23)));
  EXPECT_EQ(model.signal_us, 2);
  EXPECT_EQ(model.workers, 2);
  ASSERT_EQ(model.bytes.size(), 1u);
  EXPECT_THAT(model.bytes[0], ElementsAre(0, 8 * 16 * 16 * 2, 3 * 72 * 16 * 2)) << "columns are padded";
  const Plan plan = plan_signal(problem(), machine(), {.group_waves = {1, 1}}).value();
  std::vector<double> sent{0};
  for (const Step& step : plan.ranks[0].lanes[1].steps)
    if (const auto* collective = std::get_if<Collective>(&step))
      sent.push_back(sent.back() + static_cast<double>(collective->send.rows * collective->send.cols) * 2);
  EXPECT_EQ(model.bytes[0], sent);
}

TEST(Waves, EndWithTheirLastRealTile) {
  Machine ragged = machine();
  ragged.order = {.raster = Raster::along_m, .swizzle = 4};  // 5 × 3 tiles at 20 positions
  const WaveModel model = wave_model(problem(), ragged).value();
  EXPECT_THAT(model.computed_us, ElementsAre(DoubleEq(3), DoubleEq(13), DoubleEq(23), DoubleEq(23)));
}

TEST(Waves, HaveWhatKernelsCost) {
  Machine kernels = machine();
  kernels.sync_us = 2;
  kernels.lone_latency = 0.5;
  kernels.memory_gbps = 1;
  kernels.contention.collective_slowdown = 0.3;
  Problem p = problem();
  const WaveModel model = wave_model(p, kernels).value();
  EXPECT_EQ(model.sync_us, 2);
  EXPECT_EQ(model.latency_us, 0.5 * 10) << "of the curve with two workers";
  EXPECT_EQ(model.slowdown, 0.3);
  EXPECT_EQ(model.restore_us, 3);
  EXPECT_THAT(model.restored_us, ElementsAre(0, DoubleEq(2 * 4.096), DoubleEq(2 * 6.912)));
  p.norm.enabled = true;
  EXPECT_TRUE(wave_model(p, kernels)->restored_us.empty()) << "one pass needs all groups";
  const WaveModel lone = lone_wave_model(problem(), kernels).value();
  EXPECT_EQ(lone.slowdown, 0);
  EXPECT_TRUE(lone.restored_us.empty());
}

/// Waves behind the first are slowed for as long as their collectives take, which here is all the time.
TEST(Waves, AreSlowedByTheirCollective) {
  Machine slow = machine();
  slow.curves.clear();
  slow.link = {1e-3, 0};
  const auto waves = [&](const auto& model) { return model(problem(), slow, SignalParams{})->computed_us; };
  const std::vector<double> free = waves(wave_model), alone = waves(lone_wave_model);
  slow.contention.slowed_by(Traffic::alltoall) = 4;
  EXPECT_EQ(waves(wave_model), free);
  slow.contention.slowed_by(Traffic::allreduce) = 0.5;
  const std::vector<double> slowed = waves(wave_model);
  EXPECT_DOUBLE_EQ(slowed[1] - slowed[0], free[1] - free[0]);
  EXPECT_DOUBLE_EQ(slowed[2] - slowed[1], 1.5 * (free[2] - free[1]));
  EXPECT_EQ(waves(lone_wave_model), alone);
}

TEST(Waves, AloneTakeAllWorkers) {
  Machine wide = machine();
  wide.workers = 15;
  const WaveModel lone = lone_wave_model(problem(), wide).value();
  EXPECT_EQ(lone.waves(), 1);
  EXPECT_EQ(lone.workers, 0);
  EXPECT_EQ(wave_model(problem(), wide).value().waves(), 2);
}

TEST(Waves, ReduceScatterSendsPaddedShards) {
  Problem p = problem();
  p.op = Op::gemm_reducescatter;
  p.m = 71;
  const WaveModel model = wave_model(p, machine()).value();
  EXPECT_EQ(model.traffic, Traffic::reducescatter);
  EXPECT_EQ(model.bytes[0].back(), 3 * 72 * 16 * 2);
}

TEST(Waves, RoutedBytesAreThoseThatLeave) {
  // Rank 0 keeps its first 64 rows and sends the others; rank 1, with 16 rows, sends all of them.
  std::vector<std::vector<std::int32_t>> dest{std::vector<std::int32_t>(128, 0),
                                              std::vector<std::int32_t>(16, 0)};
  for (std::size_t row = 64; row < 128; ++row) dest[0][row] = 1;
  Problem p = problem();
  p.op = Op::gemm_alltoall;
  p.m = 128;
  p.n = 16;
  p.routing = std::make_shared<const Routing>(dest);
  Machine m = machine();
  m.workers = 4;  // waves of two tiles, and rank 1 has one
  const WaveModel model = wave_model(p, m).value();
  ASSERT_EQ(model.waves(), 4);
  const double row = 16 * 2 * 2;  // of two ranks, half of what a curve counts leaves
  ASSERT_EQ(model.bytes.size(), 4u);
  EXPECT_THAT(model.bytes[0], ElementsAre(0, 0, 0, 32 * row, 64 * row));
  EXPECT_THAT(model.bytes[1], ElementsAre(0, 16 * row, 16 * row, 16 * row, 16 * row));
  EXPECT_EQ(model.bytes[2], model.bytes[1]);
  EXPECT_EQ(model.bytes[3], model.bytes[0]);
}

TEST(Waves, SayWhyThereIsNoModel) {
  Machine none = machine();
  none.tiles.clear();
  EXPECT_THAT(wave_model(problem(), none).reason(), HasSubstr("no tile times"));
  none = machine();
  none.curves.clear();
  EXPECT_THAT(lone_wave_model(problem(), none).reason(), HasSubstr("neither a curve of allreduce"));
  Problem p = problem();
  p.op = Op::allgather_gemm;
  EXPECT_THAT(wave_model(p, machine()).reason(), HasSubstr("before its GEMM"));
  p.m = 0;
  EXPECT_THROW(static_cast<void>(wave_model(p, machine())), InvalidArgument);
}

TEST(Conditions, SlowClocksStretchWaves) {
  const WaveModel model = wave_model(problem(), under(machine(), {.slowdown = 1.5})).value();
  EXPECT_THAT(model.computed_us, ElementsAre(DoubleEq(3), DoubleEq(18), DoubleEq(33)));
}

TEST(Conditions, AShareOfTheWorkersMakesMoreWaves) {
  const Machine share = under(machine(), {.workers = 5, .collective_workers = 1});
  const WaveModel model = wave_model(problem(), share).value();
  EXPECT_EQ(model.waves(), 4);
  EXPECT_EQ(model.workers, 1);
  EXPECT_TRUE(plan_signal(problem(), share, {.group_waves = search(model).group_waves}));
  EXPECT_EQ(under(machine(), {}), machine());
  EXPECT_THROW(under(machine(), {.workers = 11}), InvalidArgument);
  EXPECT_THROW(under(machine(), {.workers = 2}), InvalidArgument);
  EXPECT_THROW(under(machine(), {.slowdown = 0}), InvalidArgument);
}

TEST(Waves, TheH200IsNearWhatWasMeasuredAlone) {
  const Machine h200 = read_machine(SHINGLE_TEST_SOURCE_DIR "/machines/h200x8.json");
  Problem p = problem();
  p.world = 8;
  p.m = p.n = 8192;
  p.k = 3584;
  EXPECT_NEAR(sequential_us(lone_wave_model(p, h200).value()), 1333, 0.08 * 1333);
}

}  // namespace
}  // namespace shingle::tune_predict_test
