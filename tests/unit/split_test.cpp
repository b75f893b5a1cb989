// Tiles that workers share (grid/split.hpp): which ones, and what each worker computes of them.
#include "grid/split.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace shingle {
namespace {

TEST(SharedTiles, AreAllAlikeWhereKernelsCannotDoOtherwise) {
  const auto parts = [](std::int64_t tiles, std::int64_t k, std::int64_t workers) {
    const SharedTiles shared = shared_tiles(KSplit::all, tiles, k, workers);
    EXPECT_EQ(shared.count, shared.parts > 1 ? tiles : 0);
    EXPECT_EQ(shared.rounds, 1);
    return shared.parts;
  };
  EXPECT_EQ(parts(64, 14336, 132), 2);
  EXPECT_EQ(parts(16, 32768, 132), 8);
  EXPECT_EQ(parts(1, 1 << 20, 132), 8);  // the last adds up all others
  EXPECT_EQ(parts(20, 1024, 132), 2);    // none below 512
  EXPECT_EQ(parts(67, 14336, 132), 1);
  EXPECT_EQ(parts(140, 14336, 132), 1);
  EXPECT_EQ(parts(0, 100, 1), 1);
}

TEST(SharedTiles, AreThoseOfALastWaveThatIsNotFull) {
  const SharedTiles half = shared_tiles(KSplit::some, 3 * 66 + 33, 8192, 66);
  EXPECT_EQ(half.count, 33);
  EXPECT_EQ(half.parts, 2);
  EXPECT_EQ(half.rounds, 1);
  EXPECT_DOUBLE_EQ(half.depth(8192), 4096);
  // Of two thirds each worker takes two parts of three.
  const SharedTiles more = shared_tiles(KSplit::some, 44, 16384, 66);
  EXPECT_EQ(more.count, 44);
  EXPECT_EQ(more.parts, 3);
  EXPECT_EQ(more.rounds, 2);
}

TEST(SharedTiles, AreNoneWhereItDoesNotPay) {
  EXPECT_EQ(shared_tiles(KSplit::some, 132, 8192, 66).count, 0);  // waves are full
  EXPECT_EQ(shared_tiles(KSplit::some, 130, 8192, 66).count, 0);  // nearly full
  EXPECT_EQ(shared_tiles(KSplit::some, 140, 1024, 66).count, 0);  // K is short
  EXPECT_EQ(shared_tiles(KSplit::none, 140, 8192, 66).count, 0);  // the kernel cannot
}

/// What deal() promises: each step of each tile has one worker, and nobody waits in a circle.
void expect_dealt(std::int64_t tiles, std::int64_t steps, std::int64_t workers, const SharedTiles& shared) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles of " << steps << " steps on " << workers << " workers, "
                                  << shared.count << " in " << shared.parts << " parts");
  const auto hands = deal(tiles, steps, workers, shared);
  ASSERT_LE(std::ssize(hands), workers);
  struct Seen {
    std::int64_t steps = 0, parts = 0;
    std::map<std::int64_t, std::int64_t> worker_of;
  };
  std::vector<Seen> seen(static_cast<std::size_t>(tiles));
  for (std::size_t worker = 0; worker < hands.size(); ++worker) {
    bool added_up = false;
    for (const TilePart& part : hands[worker]) {
      ASSERT_LT(part.first, part.last);
      Seen& of = seen[static_cast<std::size_t>(part.tile)];
      of.steps += smaller(part.last, steps) - part.first;
      of.parts = part.parts;
      ASSERT_TRUE(of.worker_of.emplace(part.part, worker).second);
      const bool adds_up = part.parts > 1 && part.part == part.parts - 1;
      ASSERT_TRUE(adds_up || !added_up) << "a part behind a wait";
      added_up = added_up || adds_up;
      ASSERT_LE(part.parts, shared.parts);
    }
  }
  for (const Seen& of : seen) {
    ASSERT_EQ(of.steps, steps);
    ASSERT_EQ(std::ssize(of.worker_of), of.parts);
    for (const auto& [part, worker] : of.worker_of) ASSERT_LE(worker, of.worker_of.at(of.parts - 1));
  }
  const auto works = [](const std::vector<TilePart>& hand) { return std::ssize(hand); };
  const auto [least, most] = std::ranges::minmax_element(hands, {}, works);
  EXPECT_LE(works(*most) - works(*least), shared.count > 0 ? shared.rounds : 1);
}

TEST(Deal, GivesEachStepToOneWorker) {
  std::mt19937 random(1);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t workers = draw(1, 132), steps = draw(1, 200);
    const std::int64_t tiles = draw(1, i % 2 == 0 ? workers : 5 * workers);
    expect_dealt(tiles, steps, workers, {});
    const std::int64_t parts = draw(2, 8), rest = tiles % workers;
    expect_dealt(tiles, steps, workers, {rest, parts, ceil_div(rest * parts, workers)});
    expect_dealt(tiles, steps, workers, {tiles, parts, ceil_div(tiles * parts, workers)});
    for (const KSplit how : {KSplit::all, KSplit::some})
      expect_dealt(tiles, steps, workers, shared_tiles(how, tiles, 64 * steps, workers));
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace shingle
