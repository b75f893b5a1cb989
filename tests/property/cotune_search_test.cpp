// Searches of configurations on random overlaps: beside all configurations, the library, and each other.
#include <gtest/gtest.h>

#include <set>

#include "support/random_problem.hpp"
#include "support/toy_overlap.hpp"

namespace shingle::cotune::cotune_search_test {
namespace {

using test::chance;
using test::Dice;
using test::ToyOverlap;

Space space() {
  Space space;
  space.channels = {1, 2, 4, 8, 16, 32};
  space.chunk_bytes = {32 << 10, 128 << 10, 512 << 10, 2 << 20};
  return space;
}

ToyOverlap random_overlap(Dice& dice, std::int64_t collectives) {
  const auto in = [&](std::int64_t least, std::int64_t most) {
    return static_cast<double>(dice.size(least, most));
  };
  ToyOverlap toy;
  toy.chained = chance(dice, 50);
  toy.link_gbps = in(10, 200);
  toy.channel_gbps = in(2, 30);
  toy.memory_share = in(0, 60) / 100;
  toy.channel_memory_share = in(0, 30) / 1000;
  toy.bytes.clear();
  toy.compute_us.clear();
  for (std::int64_t i = 0; i < collectives; ++i) toy.bytes.push_back(in(1, 1000) * 1e5);
  for (std::int64_t i = dice.size(1, 4); i > 0; --i) toy.compute_us.push_back(in(20, 5000));
  return toy;
}

double us(const Search& search) {
  return search.best_measured().makespan_us;
}

// Lagom's claim: near the best of all, whichever lane is the longer one.
TEST(CotuneSearch, IsNearAllConfigurations) {
  constexpr int cases = 200;
  for (const bool makespan_alone : {false, true})
    for (const int collectives : {1, 2}) {
      int near = 0;
      for (int seed = 0; seed < cases; ++seed) {
        Dice dice(static_cast<std::uint64_t>(seed));
        const ToyOverlap toy = random_overlap(dice, collectives);
        const double best = us(toy.searched(Method::exhaustive, space()));
        const double found = us(toy.searched(Method::together, space(), {}, makespan_alone));
        EXPECT_GE(best / found, 0.9) << seed;
        near += best / found >= 0.97;
      }
      EXPECT_GE(near, cases * 98 / 100) << collectives << " collectives";
    }
}

TEST(CotuneSearch, LosesToNobody) {
  for (int seed = 0; seed < 300; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed));
    const ToyOverlap toy = random_overlap(dice, dice.size(1, 8));
    const double together = us(toy.searched(Method::together, space()));
    EXPECT_LE(together, us(toy.searched(Method::library, space()))) << seed;
    EXPECT_LE(together, 1.06 * us(toy.searched(Method::alone, space()))) << seed;
  }
}

TEST(CotuneSearch, AsksForNothingTwiceAndEnds) {
  for (int seed = 0; seed < 200; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed));
    const auto collectives = static_cast<int>(dice.size(1, 6));
    const Method method = chance(dice, 50) ? Method::together : Method::alone;
    Search search(method, space(), collectives);
    std::set<std::vector<Config>> asked;
    while (const auto configs = search.next()) {
      EXPECT_TRUE(asked.insert(*configs).second) << seed;
      // Figures without any sense: it still has to end.
      Measurement measured{.makespan_us = static_cast<double>(dice.size(1, 1000)),
                           .compute_us = static_cast<double>(dice.size(0, 1000))};
      for (int j = 0; j < collectives; ++j)
        measured.communication_us.push_back(static_cast<double>(dice.size(1, 1000)));
      search.tell(measured);
      ASSERT_LE(search.evaluations(), 60 * collectives + 60) << seed;
    }
  }
}

TEST(CotuneSearch, RanksThatAreToldTheSameAskTheSame) {
  for (int seed = 0; seed < 50; ++seed) {
    Dice dice(static_cast<std::uint64_t>(seed));
    const ToyOverlap toy = random_overlap(dice, 3);
    Search one(Method::together, space(), 3), other(Method::together, space(), 3);
    while (const auto configs = one.next()) {
      ASSERT_EQ(configs, other.next());
      one.tell(toy.measure(*configs));
      other.tell(toy.measure(*configs));
    }
    EXPECT_EQ(other.next(), std::nullopt);
    EXPECT_EQ(one.best(), other.best());
  }
}

}  // namespace
}  // namespace shingle::cotune::cotune_search_test
