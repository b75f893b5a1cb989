// What a profile says of a machine whose times are known.
#include "shingle/tune/profile.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shingle/machine/profile.hpp"
#include "support/simulated_world.hpp"

namespace shingle::profile_test {
namespace {

using test::SimulatedParts;
using test::SimulatedWorld;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr double MiB = 1 << 20;

/// As long as a link of that rate takes, and a latency.
Curve curve(Traffic traffic, int ranks, std::int32_t workers, double gbps) {
  Curve made{traffic, ranks, workers, {}};
  for (double bytes = 4096; bytes <= 256 * MiB; bytes *= 4)
    made.samples.push_back({bytes, 10 + wire_factor(traffic, ranks) * bytes / gbps * 1e-3});
  return made;
}

/// Like a GPU: a kernel for tiles of two shapes beside a library, workers for collectives.
SimulatedParts like_a_gpu() {
  SimulatedParts parts;
  parts.ranks = 4;
  Machine& machine = parts.machine;
  machine.name = "known";
  machine.workers = 40;
  machine.tile_rows = 128;
  machine.tile_cols = 256;
  machine.order = {.raster = Raster::along_m, .swizzle = 4, .cluster_m = 2};
  machine.memory_gbps = 4000;
  machine.pass_gbps = 90;
  machine.begin_us = 6;
  machine.launch_us = 3;
  machine.signal_us = 5;
  machine.library_rate = 1.05;
  machine.tiles = {{128, 256, 1.6, 0.01028}, {128, 128, 0.8, 0.00559}};
  machine.contention = {.memory_share = 0.3,
                        .misses = {0.3, 0.2, 0},
                        .channel_gbps = 100,
                        .chunk_bytes = 65536,
                        .collective_slowdown = 0.07,
                        .persistent = true};
  for (const Traffic traffic :
       {Traffic::allreduce, Traffic::reducescatter, Traffic::allgather, Traffic::alltoall})
    for (const int ranks : {2, 4})
      for (const std::int32_t workers : {2, 4, 8, 16, 24, 32, 0})
        machine.curves.push_back(
            curve(traffic, ranks, workers, workers > 0 ? std::min(workers * 15, 230) : 240));
  parts.told.name = "told";
  parts.told.workers = machine.workers;
  parts.told.collective_workers = 8;
  parts.told.order = machine.order;
  parts.told.tile_rows = 128;
  parts.told.tile_cols = 256;
  parts.told.sources = {{"collective_workers", Origin::assumed, "a guess"}};
  parts.can.native_dtypes = {DType::bf16};
  parts.can.tiles = {{128, 128}, {128, 256}};
  parts.can.host_accessible = false;
  parts.can.timing = {.run_us = 500, .rest_us = 0};
  parts.attends = parts.attends_backward = false;
  return parts;
}

std::string note_of(const Machine& machine, const std::string& of) {
  std::string notes;
  for (const Source& source : machine.sources)
    if (source.of == of) notes += std::string(name(source.origin)) + ": " + source.note + "\n";
  return notes;
}

TEST(Profiler, FindsWhatIsKnown) {
  const SimulatedParts parts = like_a_gpu();
  const Machine& known = parts.machine;
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_NEAR(found.begin_us, known.begin_us, 0.5) << "with a tile of no time";
  EXPECT_NEAR(found.launch_us, known.launch_us, 0.1);
  EXPECT_NEAR(found.signal_us, known.signal_us, 0.1);
  EXPECT_NEAR(found.memory_gbps, known.memory_gbps, 0.02 * known.memory_gbps);
  EXPECT_NEAR(found.pass_gbps, known.pass_gbps, 0.02 * known.pass_gbps);
  EXPECT_EQ(found.reduce_gbps, 0) << "ranks cannot access each other's memory";
  ASSERT_EQ(found.tiles.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {  // the better one first
    EXPECT_EQ(found.tiles[i].cols, known.tiles[i].cols);
    EXPECT_NEAR(found.tiles[i].fixed_us, known.tiles[i].fixed_us, 0.02);
    EXPECT_NEAR(found.tiles[i].us_per_k, known.tiles[i].us_per_k, 1e-3 * known.tiles[i].us_per_k);
  }
  EXPECT_NEAR(found.library_rate, known.library_rate, 2e-3);
  EXPECT_TRUE(found.whole_tiles);
  EXPECT_TRUE(found.attention.empty()) << "it serves none";
  EXPECT_EQ(found.ranks, 4);
  ASSERT_EQ(found.curves.size(), known.curves.size());
  for (std::size_t i = 0; i < found.curves.size(); ++i) {
    const Curve& curve = found.curves[i];
    SCOPED_TRACE(testing::Message() << name(curve.traffic) << " " << curve.ranks << " " << curve.workers);
    ASSERT_EQ(curve.samples.size(), 9u);
    EXPECT_EQ(curve.samples.back().bytes, 256 * MiB);
    for (const Sample& sample : curve.samples)
      EXPECT_NEAR(sample.us, collective_us(known, curve.traffic, curve.ranks, curve.workers, sample.bytes),
                  0.01 * sample.us);
  }
  EXPECT_EQ(found.collective_workers, 16) << "230 of 240 GB/s; eight carry 120";
  EXPECT_EQ(machine_from_json(to_json(found)), found) << "every figure has a source";
}

/// A world whose runs all take the same time has nothing to refuse; how long it takes is told before
/// anything.
TEST(Profiler, TellsHowLongAndWhatIsUnsteady) {
  SimulatedWorld world(like_a_gpu());
  std::vector<std::string> told;
  ProfileOptions options{.most_spread = 1e-9};
  options.expects = [&](double seconds) {
    EXPECT_GT(seconds, 0);
    told.emplace_back("expects");
  };
  options.progress = [&](const std::string& line) { told.push_back(line); };
  EXPECT_TRUE(profile_steadily(world, options).unsteady.empty());
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.front(), "expects");
  EXPECT_EQ(describe({{"tiles of 64x64", 0.312}, {"memory", 0.27}}), "tiles of 64x64 by 31%, memory by 27%");
}

TEST(Profiler, FindsWhatStoresToOthersReach) {
  SimulatedParts parts = like_a_gpu();
  parts.can.remote_memory = true;
  parts.machine.link = {400, 2};
  parts.machine.sync_us = 2;
  parts.machine.store_gbps = 300;
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_NEAR(found.store_gbps, 300, 9);
  EXPECT_THAT(note_of(found, "store_gbps"), StartsWith("measured: "));
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

TEST(Profiler, FindsWhatKernelsBetweenStepsCost) {
  SimulatedParts parts = like_a_gpu();
  parts.machine.sync_us = 2;
  parts.machine.hooked_us = 5;
  parts.machine.lone_latency = 0.8;
  parts.machine.picking_rate = 0.96;
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_NEAR(found.sync_us, 2, 0.05);
  EXPECT_NEAR(found.signal_us, parts.machine.signal_us, 0.1);
  EXPECT_NEAR(found.hooked_us, 5, 0.2);
  ASSERT_EQ(found.tiles.size(), parts.machine.tiles.size());
  for (std::size_t i = 0; i < found.tiles.size(); ++i)
    EXPECT_NEAR(found.tiles[i].us_per_k, parts.machine.tiles[i].us_per_k,
                2e-3 * parts.machine.tiles[i].us_per_k)
        << "without what a GEMM takes to begin and end";
  EXPECT_NEAR(found.lone_latency, 0.8, 0.05);
  EXPECT_NEAR(found.picking_rate, 0.96, 2e-3);
  for (const char* of : {"sync_us", "hooked_us", "lone_latency", "picking_rate"})
    EXPECT_THAT(note_of(found, of), StartsWith("measured: "));
}

TEST(Profiler, FindsSumsWhereDevicesReachEachOther) {
  SimulatedParts parts = like_a_gpu();
  parts.machine.reduce_gbps = 70;
  parts.can.remote_memory = true;
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_NEAR(found.pass_gbps, 90, 2);
  EXPECT_NEAR(found.reduce_gbps, 70, 2);
  EXPECT_THAT(note_of(found, "pass_gbps"), Not(HasSubstr("stored")));
  EXPECT_THAT(note_of(found, "reduce_gbps"), StartsWith("measured: "));
}

/// Copy engines of two ranks, with phases that a profile should find.
SimulatedParts with_engines() {
  SimulatedParts parts = like_a_gpu();
  parts.can.remote_memory = true;
  parts.machine.link = {400, 1.5};
  parts.told.link = parts.machine.link;
  parts.told.sources.push_back({"link", Origin::datasheet, "a link"});
  parts.machine.engine = {.control_us = 2.5,
                          .schedule_us = 6,
                          .copy_us = 3,
                          .gbps = 380,
                          .sync_us = 1.5,
                          .queued_us = 1.2,
                          .poll_us = 4,
                          .broadcast_us = 1.7,
                          .swap_us = 5};
  return parts;
}

TEST(Profiler, FindsThePhasesOfCopyEngines) {
  SimulatedWorld world(with_engines());
  const EnginePhases known = with_engines().machine.engine;
  const Machine found = profile(world);
  EXPECT_NEAR(found.engine.control_us, known.control_us, 0.1);
  EXPECT_NEAR(found.engine.schedule_us, known.schedule_us, 0.3);
  EXPECT_NEAR(found.engine.copy_us, known.copy_us, 0.1);
  EXPECT_NEAR(found.engine.gbps, known.gbps, 4);
  EXPECT_NEAR(found.engine.sync_us, known.sync_us, 0.1);
  EXPECT_NEAR(found.engine.queued_us, known.queued_us, 0.1);
  EXPECT_NEAR(found.engine.poll_us, known.poll_us, 0.2);
  EXPECT_NEAR(found.engine.broadcast_us, known.broadcast_us, 0.1);
  EXPECT_NEAR(found.engine.swap_us, known.swap_us, 0.1);
  EXPECT_THAT(note_of(found, "engine"), StartsWith("measured: "));
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

/// Small phases of the launching thread come from many plans, whose errors offset each other.
TEST(Profiler, FindsPhasesOfCopyEnginesInNoise) {
  const EnginePhases known = with_engines().machine.engine;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    SimulatedParts parts = with_engines();
    parts.noise = 0.03;
    parts.random.seed(seed);
    SimulatedWorld world(parts);
    const Machine found = profile(world, {.budget_us = 1e9});
    EXPECT_NEAR(found.engine.control_us, known.control_us, 0.1 * known.control_us) << seed;
    EXPECT_NEAR(found.engine.schedule_us, known.schedule_us, 0.2 * known.schedule_us) << seed;
  }
}

TEST(Profiler, LeavesEnginesThatNobodyReaches) {
  SimulatedParts parts = like_a_gpu();
  parts.told.engine = {.copy_us = 7};
  parts.told.sources.push_back({"engine", Origin::assumed, "a guess"});
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_EQ(found.engine, parts.told.engine);
  EXPECT_EQ(note_of(found, "engine"), "assumed: a guess\n");
}

/// Eq. 6: a sample's computation beside its collective, relative to its time alone.
double slowed(const Machine& machine, const ContentionSample& sample) {
  const Contention& of = machine.contention;
  return Contention::slowed(
      of.share(sample.computation, sample.moved, sample.product_us, machine.memory_gbps),
      of.traffic_gbps(sample.workers, static_cast<double>(sample.chunk_bytes)), machine.memory_gbps);
}

TEST(Profiler, FindsContention) {
  for (const bool persistent : {true, false}) {
    SimulatedParts parts = like_a_gpu();
    parts.machine.contention.persistent = persistent;
    SimulatedWorld world(parts);
    const Machine found = profile(world);
    double most = 1;
    for (const ContentionSample& sample : found.contention_samples) {
      const double known = slowed(parts.machine, sample);
      most = std::max(most, known);
      EXPECT_NEAR(slowed(found, sample), known, 0.01 + 0.1 * (known - 1)) << name(sample.computation);
    }
    EXPECT_GT(most, 1.2);
    EXPECT_NEAR(found.contention.collective_slowdown, 0.07, 5e-3);
    EXPECT_EQ(found.contention.persistent, persistent);
    EXPECT_EQ(found.contention_samples.size(), 28u)
        << "three collectives of two sizes, and one beside passes, on 2 to 32 workers";
    EXPECT_LT(*found.contention.product_residual, 0.02);
    EXPECT_LT(*found.contention.collective_residual, 0.01);
    EXPECT_EQ(machine_from_json(to_json(found)), found);
  }
}

/// Eq. 6 has a demand of memory for each computation.
TEST(Profiler, FindsTheDemandOfEachComputation) {
  SimulatedParts parts = like_a_gpu();
  parts.attends = true;
  parts.machine.contention.persistent = false;
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_EQ(found.contention_samples.size(), 32u);
  const Contention& known = parts.machine.contention;
  EXPECT_NEAR(found.contention.channel_gbps, known.channel_gbps, 0.1 * known.channel_gbps);
  ASSERT_TRUE(found.contention.misses[0] && found.contention.misses[1] && found.contention.misses[2]);
  EXPECT_NEAR(*found.contention.misses[0], 0.3, 0.06);
  EXPECT_NEAR(*found.contention.misses[1], 0.2, 0.1);
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

/// A library is told its chunks once a process: what each of several says is added to the profile.
TEST(Profiler, FindsWhatChunksDo) {
  SimulatedParts parts = like_a_gpu();
  parts.machine.contention.channel_gbps = 60;
  parts.machine.contention.chunk_us = 0.5;
  SimulatedWorld world(parts);
  Machine found = profile(world);
  const std::size_t curves = found.curves.size();
  for (const std::int64_t chunk : {65536, 262144, 65536})
    found = profile(world, {.base = found, .chunk_bytes = chunk});
  EXPECT_EQ(found.contention_samples.size(), 84u) << "those of the same chunk in place of earlier ones";
  EXPECT_EQ(found.curves.size(), curves);
  EXPECT_NEAR(*found.contention.chunk_us, 0.5, 0.02);
  double least = 2, most = 1;
  for (const ContentionSample& sample : found.contention_samples) {
    const double known = slowed(parts.machine, sample);
    if (sample.computation == ComputationKind::pass && sample.workers == 32)
      least = std::min(least, known), most = std::max(most, known);
    EXPECT_NEAR(slowed(found, sample), known, 0.02) << sample.workers << " " << sample.chunk_bytes;
  }
  EXPECT_GT(most, least + 0.02) << "small chunks take less";
  EXPECT_THAT(note_of(found, "contention"), HasSubstr("residuals of 84 samples"));
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

TEST(Profiler, RefusesChunksWhereCollectivesShareCores) {
  SimulatedParts parts = like_a_gpu();
  parts.told.collective_workers = 0;
  SimulatedWorld world(parts);
  EXPECT_THROW(profile(world, {.chunk_bytes = 65536}), InvalidArgument);
}

/// Like threads: any tile, cut where the matrix ends, and collectives on the same cores.
TEST(Profiler, FindsWhatThreadsDo) {
  SimulatedParts parts;
  parts.machine.workers = 2;
  parts.machine.memory_gbps = 8;
  parts.machine.pass_gbps = 3;
  parts.machine.reduce_gbps = 2;
  parts.machine.launch_us = 2;
  parts.machine.signal_us = 1;
  parts.machine.whole_tiles = false;
  parts.machine.attention = {{{256, 256, 4, 64}, 0.4},
                             {{1024, 1024, 4, 64}, 0.5},
                             {{256, 1024, 4, 64}, 0.3},
                             {{1024, 1024, 2, 64, false, true}, 0.2}};
  parts.machine.topology.serial = true;
  for (const std::int32_t side : {64, 128, 256, 512, 1024, 2048})
    parts.machine.tiles.push_back({side, side, 1, 2e-5 * side * side});
  for (const Traffic traffic :
       {Traffic::allreduce, Traffic::reducescatter, Traffic::allgather, Traffic::alltoall})
    parts.machine.curves.push_back(curve(traffic, 2, 0, 1));
  parts.machine.contention.wake_us = 40;
  parts.told.workers = 2;
  parts.told.topology.serial = true;
  parts.can.remote_memory = true;
  parts.can.native_dtypes = {DType::f32};
  SimulatedWorld world(parts);
  const Machine found = profile(world);
  EXPECT_EQ(found.collective_workers, 0);
  EXPECT_FALSE(found.whole_tiles);
  ASSERT_EQ(found.attention.size(), 12u) << "three sizes, causal or not, and backward";
  for (const AttentionRate& one : found.attention)
    EXPECT_NEAR(one.rate, attention_rate(parts.machine, one.of), 0.04 * one.rate)
        << one.of.queries << " " << one.of.keys << " " << one.of.causal << " " << one.of.backward;
  EXPECT_EQ(found.library_rate, 1);
  EXPECT_NEAR(found.pass_gbps, 3, 0.03);
  EXPECT_NEAR(found.reduce_gbps, 2, 0.02);
  EXPECT_THAT(note_of(found, "pass_gbps"), HasSubstr("that another rank has stored"));
  EXPECT_NEAR(wave_us(found, 256, 256, 1024), wave_us(parts.machine, 256, 256, 1024),
              0.02 * wave_us(parts.machine, 256, 256, 1024));
  EXPECT_NEAR(found.contention.wake_us, 40, 4);
  ASSERT_EQ(found.curves.size(), 4u);
  EXPECT_LT(found.curves[0].samples.size(), 9u) << "no calls of many milliseconds";
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

TEST(Profiler, KeepsOfItsBaseWhatItDoesNotMeasure) {
  SimulatedWorld world(like_a_gpu());
  Machine base = world.machine();
  base.name = "base";
  base.ranks = 8;
  base.link = {400, 4};
  base.tiles = {{128, 256, 9, 9}, {192, 192, 2, 0.5}};
  base.curves = {curve(Traffic::allreduce, 4, 0, 1), curve(Traffic::allreduce, 8, 0, 300)};
  base.sources = {{"workers", Origin::datasheet, "40 of them"},
                  {"ranks", Origin::datasheet, "eight"},
                  {"collective_workers", Origin::assumed, "eight"},
                  {"tile", Origin::assumed, "large"},
                  {"link", Origin::datasheet, "a link"},
                  {"tiles", Origin::fitted, "a model"},
                  {"curves", Origin::paper, "eight ranks"},
                  {"peer_memory", Origin::datasheet, "yes"}};
  const Machine found = profile(world, {.base = base});
  EXPECT_EQ(found.name, "base");
  EXPECT_EQ(found.ranks, 8);
  EXPECT_EQ(found.link, base.link);
  EXPECT_THAT(found.curves, Contains(base.curves[1]));
  EXPECT_NEAR(collective_us(found, Traffic::allreduce, 4, 0, 256 * MiB),
              collective_us(like_a_gpu().machine, Traffic::allreduce, 4, 0, 256 * MiB), 20);
  ASSERT_EQ(found.tiles.size(), 2u) << "those that are served";
  EXPECT_NEAR(found.tiles[0].us_per_k, like_a_gpu().machine.tiles[0].us_per_k, 1e-4);
  EXPECT_THAT(note_of(found, "curves"), HasSubstr("paper: otherwise: eight ranks\n"));
  EXPECT_THAT(note_of(found, "curves"), HasSubstr("measured: "));
  EXPECT_THAT(note_of(found, "tiles"), Not(HasSubstr("a model")));
  EXPECT_EQ(note_of(found, "ranks"), "datasheet: eight\n");
  EXPECT_THAT(note_of(found, "launch_us"), StartsWith("measured: "));
  EXPECT_EQ(machine_from_json(to_json(found)), found);
}

TEST(Profiler, KeepsRatesOfBackwardWhereThereIsNone) {
  SimulatedParts parts = like_a_gpu();
  parts.attends = true, parts.attends_backward = false;
  parts.machine.attention = {{{1024, 1024, 4}, 0.5}, {{16384, 16384, 32}, 0.8}};
  SimulatedWorld world(parts);
  Machine base = parts.machine;
  base.attention = {{{4096, 4096, 8}, 0.9}, {{4096, 4096, 8, 128, false, true}, 0.7}};
  base.sources = {{"attention", Origin::paper, "both"}};
  const Machine found = profile(world, {.base = base});
  EXPECT_EQ(
      std::ranges::count(found.attention, true, [](const AttentionRate& one) { return one.of.backward; }), 1);
  EXPECT_THAT(found.attention, Contains(base.attention[1])) << "the base's";
  EXPECT_THAT(found.attention, Not(Contains(base.attention[0]))) << "measured anew";
  for (const AttentionRate& one : found.attention) {
    const double known = one.of.backward ? 0.7 : attention_rate(parts.machine, one.of);
    EXPECT_NEAR(one.rate, known, 0.05 * known) << one.of.queries << " " << one.of.keys;
  }
  EXPECT_THAT(note_of(found, "attention"), HasSubstr("paper: otherwise: both\n"));
  EXPECT_THAT(note_of(found, "attention"), HasSubstr("measured: 22 attentions and 0 of their backward"));
}

TEST(Profiler, MeasuresNothingNewOnceTheBudgetIsSpent) {
  SimulatedWorld world(like_a_gpu());
  const Machine base = like_a_gpu().machine;
  std::vector<std::string> said;
  const Machine found = profile(
      world,
      {.base = base, .budget_us = 1e-3, .progress = [&](const std::string& line) { said.push_back(line); }});
  EXPECT_EQ(world.plans, 0);
  EXPECT_EQ(found.curves, base.curves);
  EXPECT_EQ(found.tiles, base.tiles);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], StartsWith("the budget is spent; figures from known: steps and signals, memory, "));
}

TEST(Profiler, RefusesABaseOfOtherWorkers) {
  SimulatedWorld world(like_a_gpu());
  Machine base = like_a_gpu().machine;
  base.workers = 41;
  EXPECT_THAT([&] { profile(world, {.base = base}); },
              testing::ThrowsMessage<InvalidArgument>(
                  "base known has 41 workers, this machine 40; use a base with as many"));
}

}  // namespace
}  // namespace shingle::profile_test
