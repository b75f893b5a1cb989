// How the NCCL tuner tells iterations of equal calls apart.
#include "nccl_tuner/rhythm.hpp"

#include <gtest/gtest.h>

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
  // 8 bursts of 4: layers that wait for each other, then an optimizer.
  EXPECT_EQ(sequences([&](int i) { return i % 32 == 0 ? 20e3 : i % 4 == 0 ? 2e3 : 50; }), 32u);
}

TEST(Rhythm, IsOneOfEvenOrIrregularPauses) {
  std::mt19937 random(1);
  std::normal_distribution<> noise(1, 0.05);
  std::exponential_distribution<> irregular(1);
  EXPECT_EQ(sequences([&](int) { return 700; }), 1u);
  EXPECT_EQ(sequences([&](int) { return 700 * noise(random); }), 1u);
  EXPECT_EQ(sequences([&](int) { return 700 * irregular(random); }), 1u);
  EXPECT_EQ(sequences([&](int i) { return (i == 300 || i == 333 ? 50e3 : 25e3) * noise(random); }), 1u)
      << "two garbage collections";
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

}  // namespace
}  // namespace shingle::nccl_tuner::nccl_rhythm_test
