// Contention that is known, found again in samples of it.
#include "tune/contention_fit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace shingle::contention_fit_test {
namespace {

using testing::HasSubstr;
using tuning::fit_contention;

constexpr double KiB = 1 << 10, MiB = 1 << 20;
constexpr int ranks = 4;

Machine known_machine() {
  Machine machine;
  machine.name = "known";
  machine.workers = 132;
  machine.memory_gbps = 4000;
  for (const std::int32_t workers : {2, 8, 16, 32})
    for (const Traffic traffic : {Traffic::allreduce, Traffic::allgather})
      machine.curves.push_back({traffic, ranks, workers, {{4 * KiB, 10}, {64 * MiB, 6000.0 / workers}}});
  machine.contention = {.memory_share = 0.3,
                        .channel_gbps = 70,
                        .chunk_bytes = 64 * KiB,
                        .chunk_us = 0.8,
                        .collective_slowdown = 0.07};
  return machine;
}

/// What a machine says of itself, each time off by a normally distributed part.
std::vector<ContentionSample> samples_of(const Machine& machine, const std::vector<std::int64_t>& chunks,
                                         double noise) {
  std::mt19937 bits(7);
  std::normal_distribution<double> normal(0, 1);
  const auto noisy = [&](double us) { return us * (1 + noise * normal(bits)); };
  std::vector<ContentionSample> samples;
  for (const std::int64_t chunk : chunks)
    for (const Curve& curve : machine.curves)
      for (const double bytes : {8 * MiB, 64 * MiB}) {
        const CollectiveConfig config{.channels = curve.workers, .chunk_bytes = chunk};
        const double us = collective_us(machine, curve.traffic, ranks, config, bytes);
        const Contention& contention = machine.contention;
        const double taken = contention.traffic_gbps(curve.workers, static_cast<double>(chunk));
        samples.push_back({.traffic = curve.traffic,
                           .ranks = ranks,
                           .workers = curve.workers,
                           .chunk_bytes = chunk,
                           .bytes = bytes,
                           .us = noisy(us),
                           .beside_us = noisy(us * (1 + contention.collective_slowdown)),
                           .product_us = noisy(500),
                           .product_beside_us = noisy(500 * Contention::slowed(contention.memory_share, taken,
                                                                               machine.memory_gbps))});
      }
  return samples;
}

Machine fitted_on(Machine machine, std::vector<ContentionSample> samples) {
  machine.contention = {};
  machine.contention_samples = std::move(samples);
  machine.contention = fit_contention(machine);
  return machine;
}

double slowed(const Machine& machine, double workers, double chunk) {
  return Contention::slowed(machine.contention.memory_share, machine.contention.traffic_gbps(workers, chunk),
                            machine.memory_gbps);
}

TEST(ContentionFit, FindsWhatEnginesTake) {
  const Machine known = known_machine();
  std::vector<ContentionSample> samples = samples_of(known, {0}, 0);
  const double gbps = 380, share = known.contention.memory_share;
  for (const double bytes : {8 * MiB, 64 * MiB}) {
    const double us = wire_factor(Traffic::allgather, ranks) * bytes / gbps * 1e-3;
    samples.push_back(
        {.traffic = Traffic::allgather,
         .ranks = ranks,
         .bytes = bytes,
         .us = us,
         .beside_us = us,
         .product_us = 500,
         .product_beside_us = 500 * Contention::slowed(share, 0.8 * 2 * gbps, known.memory_gbps),
         .engines = true});
  }
  const Machine found = fitted_on(known, samples);
  EXPECT_NEAR(found.contention.engine_traffic, 0.8, 0.05);
  EXPECT_NEAR(tuning::residual_of(found, samples.back()).product, 0, 0.01);
  EXPECT_EQ(fitted_on(known, samples_of(known, {0}, 0)).contention.engine_traffic, 0) << "not measured";
  EXPECT_THAT(tuning::describe_fit(found), HasSubstr("copy engines take 0.8"));
}

TEST(ContentionFit, FindsWhatIsKnown) {
  const Machine known = known_machine();
  const Contention& true_one = known.contention;
  const Contention found = fitted_on(known, samples_of(known, {0, 65536, 262144}, 0)).contention;
  EXPECT_NEAR(found.memory_share, true_one.memory_share, 0.03);
  EXPECT_NEAR(found.channel_gbps, true_one.channel_gbps, 5);
  EXPECT_NEAR(found.chunk_bytes, true_one.chunk_bytes, 4 * KiB);
  EXPECT_NEAR(*found.chunk_us, *true_one.chunk_us, 1e-6);
  EXPECT_NEAR(found.collective_slowdown, true_one.collective_slowdown, 1e-6);
  EXPECT_LT(*found.product_residual, 2e-3);
  EXPECT_LT(*found.collective_residual, 1e-6);
}

/// What a kind of collective adds to products is the base's, and is not taken for memory traffic as well.
TEST(ContentionFit, KeepsWhatAKindOfCollectiveAdds) {
  Machine known = known_machine();
  const Contention plain = fitted_on(known, samples_of(known, {0, 65536}, 0)).contention;
  known.contention_samples = samples_of(known, {0, 65536}, 0);
  known.contention = {};
  for (ContentionSample& sample : known.contention_samples) {
    known.contention.slowed_by(sample.traffic) = 0.45;
    sample.product_beside_us *= 1.45;
  }
  Contention found = fit_contention(known);
  EXPECT_EQ(found.product_slowdown, known.contention.product_slowdown);
  found.product_slowdown = {};
  EXPECT_NEAR(found.memory_share, plain.memory_share, 1e-9);
  EXPECT_NEAR(found.channel_gbps, plain.channel_gbps, 1e-9);
  EXPECT_NEAR(*found.product_residual, *plain.product_residual, 1e-9);
}

TEST(ContentionFit, APassThatWaitedForACollectiveIsNotSlowedByIt) {
  ContentionSample sample{.beside_us = 800, .product_us = 250, .product_beside_us = 1000};
  sample.computation = ComputationKind::pass;
  EXPECT_TRUE(tuning::waited_for_one(sample));
  sample.product_beside_us = 600;
  EXPECT_FALSE(tuning::waited_for_one(sample)) << "slowed all the time";
  sample.product_beside_us = 1000, sample.beside_us = 300;
  EXPECT_FALSE(tuning::waited_for_one(sample)) << "several collectives ended meanwhile";
  sample.beside_us = 800, sample.computation = ComputationKind::product;
  EXPECT_FALSE(tuning::waited_for_one(sample)) << "products do not wait";
}

TEST(ContentionFit, PredictsThroughNoise) {
  const Machine known = known_machine();
  const Machine found = fitted_on(known, samples_of(known, {0, 65536, 262144}, 0.01));
  for (const double workers : {1, 4, 12, 32})
    for (const double chunk : {0.0, 32 * KiB, 128 * KiB, 2 * MiB})
      EXPECT_NEAR(slowed(found, workers, chunk), slowed(known, workers, chunk), 0.015)
          << workers << " " << chunk;
  EXPECT_NEAR(*found.contention.chunk_us, *known.contention.chunk_us, 0.08);
  EXPECT_NEAR(found.contention.collective_slowdown, known.contention.collective_slowdown, 0.01);
  EXPECT_NEAR(*found.contention.product_residual, 0.014, 0.005) << "two times with a noise of 1% each";
  EXPECT_NEAR(*found.contention.collective_residual, 0.014, 0.005);
  EXPECT_THAT(tuning::describe_fit(found), HasSubstr("residuals of 48 samples"));
}

/// A slow-down in proportion to V may be a large part of a small V, or a small part of a large one.
TEST(ContentionFit, AssumesThreeTimesTheWireWhereVCannotBeTold) {
  Machine known = known_machine();
  known.contention.channel_gbps = 1;
  const std::vector<ContentionSample> samples = samples_of(known, {0}, 0);
  const Machine found = fitted_on(known, samples);
  double wire = 0;
  for (const ContentionSample& sample : samples)
    wire += wire_factor(sample.traffic, ranks) * sample.bytes / sample.us * 1e-3 / sample.workers /
            static_cast<double>(samples.size());
  EXPECT_NEAR(found.contention.channel_gbps, 3 * wire, 0.3 * wire);
  EXPECT_NEAR(slowed(found, 32, 0), slowed(known, 32, 0), 1e-3);
  EXPECT_EQ(found.contention.chunk_bytes, 0) << "which one chunk size does not tell";
  EXPECT_FALSE(found.contention.chunk_us);
}

/// Products, attentions and passes, each with its own demand of memory (Lagom Eq. 6).
TEST(ContentionFit, FindsTheDemandOfEachComputation) {
  Machine known = known_machine();
  known.contention.misses = {0.3, 0.05, 0.0};
  const auto computations = {std::pair{ComputationKind::product, MovedBytes{0.2e9, 1.5e9}},
                             {ComputationKind::attention, {0.1e9, 2e9}},
                             {ComputationKind::pass, {2e9, 0}}};
  std::vector<ContentionSample> samples;
  for (const auto& [kind, moved] : computations)
    for (ContentionSample sample : samples_of(known, {0}, 0)) {
      const Contention& contention = known.contention;
      const double taken = contention.traffic_gbps(sample.workers, 0);
      const double share = contention.share(kind, moved, sample.product_us, known.memory_gbps);
      sample.computation = kind, sample.moved = moved;
      sample.product_beside_us = sample.product_us * Contention::slowed(share, taken, known.memory_gbps);
      samples.push_back(sample);
    }
  const Machine found = fitted_on(known, samples);
  EXPECT_NEAR(found.contention.channel_gbps, 70, 2) << "passes tell V";
  EXPECT_NEAR(*found.contention.misses[0], 0.3, 0.02);
  EXPECT_NEAR(*found.contention.misses[1], 0.05, 0.01);
  EXPECT_EQ(found.contention.misses[2], 0);
  EXPECT_NEAR(found.contention.memory_share, 0.325, 0.02) << "of the products";
  EXPECT_LT(*found.contention.product_residual, 5e-3);
  EXPECT_THAT(tuning::describe_fit(found), HasSubstr("caches miss 30% of what a product reads again"));
}

TEST(ContentionFit, CountsWhatTilesReadAgain) {
  const MovedBytes one = product_moves({128, 256, 64, 128, 256}, 2);
  EXPECT_EQ(one, (MovedBytes{2.0 * (128 * 64 + 64 * 256 + 128 * 256), 0}));
  EXPECT_EQ(product_moves({256, 512, 64, 128, 256}, 2).again, 2.0 * (256 * 64 + 64 * 512));
  EXPECT_EQ(attention_moves(128, 1000, 64, false, 2), (MovedBytes{2.0 * 64 * (2 * 128 + 2 * 1000), 0}));
  EXPECT_EQ(attention_moves(1280, 1000, 64, false, 2).again, 9 * 2.0 * 64 * 2 * 1000);
  EXPECT_EQ(attention_moves(1280, 1000, 64, true, 2).again, 4 * 2.0 * 64 * 2 * 1000);
}

TEST(ContentionFit, FindsThatProductsAreNotSlowed) {
  Machine known = known_machine();
  known.contention = {};
  const Machine found = fitted_on(known, samples_of(known, {0}, 0));
  EXPECT_EQ(slowed(found, 32, 0), 1);
  EXPECT_EQ(found.contention.collective_slowdown, 0);
}

TEST(ContentionFit, FindsWhatSharedCoresLose) {
  Machine machine;
  std::mt19937 bits(7);
  std::normal_distribution<double> noise(1, 0.005);
  for (const double us : {30.0, 600.0, 2400.0})
    for (const std::int32_t calls : {2, 8})
      machine.contention_samples.push_back({.bytes = us * 1000,
                                            .us = us * noise(bits),
                                            .beside_us = (us + 40) * noise(bits),
                                            .product_us = 40000 * noise(bits),
                                            .product_beside_us = (40000 + 0.45 * calls * us) * noise(bits),
                                            .calls = calls});
  const Contention found = fit_contention(machine);
  EXPECT_NEAR(found.steals, 0.45, 0.05);
  EXPECT_NEAR(found.wake_us, 40, 2);
  EXPECT_LT(*found.product_residual, 0.015);
  EXPECT_LT(*found.collective_residual, 0.015);
}

TEST(ContentionFit, LeavesWhatNothingWasMeasuredOf) {
  const Machine machine = known_machine();
  EXPECT_EQ(fit_contention(machine), machine.contention);
}

}  // namespace
}  // namespace shingle::contention_fit_test
