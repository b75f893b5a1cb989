// How the NCCL tuner tells iterations of equal calls apart.
#include "nccl_tuner/rhythm.hpp"

#include <gtest/gtest.h>

#include "nccl_tuner/iteration.hpp"

#include <functional>
#include <random>

namespace shingle::nccl_tuner::nccl_rhythm_test {
namespace {

using std::chrono::duration;

/// Sequences in an iteration of a program that pauses so many us before its sequence i; 0: not told in 10000.
std::size_t sequences(const std::function<double(int)>& pause_us) {
  Rhythm rhythm;
  Rhythm::Clock::time_point now{};
  for (int i = 0; i < 10000; ++i) {
    now += std::chrono::duration_cast<Rhythm::Clock::duration>(duration<double, std::micro>(pause_us(i)));
    if (const auto found = rhythm.on_begin(now)) return *found;
  }
  return 0;
}

TEST(Rhythm, IsThatOfTheBursts) {
  std::mt19937 random(1);
  std::normal_distribution<> noise(1, 0.1);
  std::uniform_real_distribution<> jitter(30, 70);
  for (const int burst : {2, 3, 16, 63, 320, 1000})
    for (const double rest : {1, 4, 100}) {  // times as long as the burst
      const double rest_us = rest * 50 * burst;
      EXPECT_EQ(sequences([&](int i) { return i % burst == 0 ? rest_us * noise(random) : jitter(random); }),
                static_cast<std::size_t>(burst))
          << rest;
    }
}

TEST(Rhythm, IsThatOfTheIterationAndNotOfItsLayers) {
  std::mt19937 random(1);
  std::normal_distribution<> noise(1, 0.02);
  struct Shape {
    int layers;
    double layer_us, rest_us;
  };
  for (const auto& [layers, layer_us, rest_us] :
       {Shape{8, 2e3, 20e3}, {8, 100e3, 200e3}, {24, 40e3, 100e3}, {32, 10e3, 50e3}, {1, 0, 300e3}})
    EXPECT_EQ(sequences([&](int i) {
                return (i % (4 * layers) == 0 ? rest_us : i % 4 == 0 ? layer_us : 50) * noise(random);
              }),
              static_cast<std::size_t>(4 * layers))
        << layers << " layers";
  EXPECT_EQ(sequences([&](int i) { return (i % 64 == 0 ? 300e3 : 11e3) * noise(random); }), 64u);
}

TEST(Rhythm, IsOneOfEvenOrIrregularPauses) {
  std::mt19937 random(1);
  std::normal_distribution<> noise(1, 0.05);
  std::exponential_distribution<> irregular(1);
  EXPECT_EQ(sequences([&](int) { return 700; }), 1u);
  EXPECT_EQ(sequences([&](int) { return 700 * noise(random); }), 1u);
  EXPECT_EQ(sequences([&](int) { return 700 * irregular(random); }), 1u);
  EXPECT_EQ(sequences([&](int i) { return (i == 30 || i == 33 ? 50e3 : 25e3) * noise(random); }), 1u)
      << "two garbage collections";
  EXPECT_EQ(sequences([&](int i) { return i == 20 ? 60e6 : 25e3 * noise(random); }), 1u) << "a checkpoint";
}

TEST(Rhythm, StartsAnewAfterAnInterruption) {
  Rhythm rhythm;
  Rhythm::Clock::time_point now{};
  for (int i = 0; i < 100; ++i) ASSERT_EQ(rhythm.on_begin(now += std::chrono::milliseconds(1)), std::nullopt);
  rhythm.restart();
  now += std::chrono::hours(1);
  std::optional<std::size_t> found;
  int begins = 0;
  for (; !found; ++begins)
    found = rhythm.on_begin(now += std::chrono::milliseconds(begins % 4 == 0 ? 30 : 1));
  EXPECT_EQ(*found, 4u);
}

/// Behind an interruption, calls of the iteration before it do not count.
TEST(Iteration, JoinsOnlySequencesThatHavePassed) {
  Iteration iteration;
  const auto push = [&](int calls, std::uint64_t signature) {
    auto last = Iteration::Event::none;
    for (int i = 0; i < calls; ++i) last = iteration.push(signature);
    return last;
  };
  push(5000, 1);
  ASSERT_EQ(iteration.period(), 1u);
  ASSERT_TRUE(iteration.join(64));
  EXPECT_EQ(iteration.period(), 64u);
  EXPECT_EQ(push(1, 2), Iteration::Event::broken);
  while (iteration.period() == 0) push(1, 1);
  EXPECT_FALSE(iteration.join(64)) << "the last 64 calls have another one";
  EXPECT_EQ(iteration.period(), 1u);
  push(64, 1);
  ASSERT_TRUE(iteration.join(64));
  EXPECT_EQ(iteration.calls(), std::vector<std::uint64_t>(64, 1));
  EXPECT_EQ(push(64, 1), Iteration::Event::begins);
  EXPECT_FALSE(iteration.join(1 << 20)) << "of the most that is kept, few have passed";
  push(16384, 1);
  ASSERT_TRUE(iteration.join(1 << 20));
  EXPECT_LE(iteration.period(), 16384u / 3);
}

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_rhythm_test
